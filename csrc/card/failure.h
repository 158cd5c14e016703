// How the card's own code reports a problem: an exception that the C API turns into a code.
#pragma once

#include <exception>
#include <string>
#include <utility>

namespace spyre {

// `code` is a SPYRE_* code of card.h, `text` says what and why.
class Failure : public std::exception {
 public:
  Failure(int code, std::string text) : code_(code), text_(std::move(text)) {}
  int code() const { return code_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  int code_;
  std::string text_;
};

}  // namespace spyre
