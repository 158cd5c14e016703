// The op table as the card sees it; rows come from ops.def.
#pragma once

namespace spyre {

struct OpRow {
  const char* name;
  int code, arity;
  const char* classes;  // of the arguments: letters of "fib"
  bool gives_bool;
  bool transcendental;
  bool is_cast;
  bool first_is_bool;  // `where`

  bool takes(int value_class) const;  // 0 f32, 1 i64, 2 i32, 3 bool
};

// The row of a code, null if there is none.
const OpRow* op_row(int code);

}  // namespace spyre
