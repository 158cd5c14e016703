// Errors of the card that reach Python after the call that caused them.
#pragma once

#include <string>

namespace openspyre {

// IndexError for an index of the user's, openspyre.errors.CardError for everything else.
[[noreturn]] void throw_card_error(int code, const std::string& text);

}  // namespace openspyre
