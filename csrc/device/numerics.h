// How launches compute (openspyre/numerics.py): one choice for the process, which every launch
// takes with it when it is submitted. Not a thread's: autograd runs backward on threads of its own.
#pragma once

#include "../card/card.h"

namespace openspyre {

// The choice of now. It stays where it is for ever.
const spyre_numerics& numerics() noexcept;
void set_numerics(const spyre_numerics& chosen);

}  // namespace openspyre
