#include "card_error.h"

#include <torch/csrc/Exceptions.h>

#include "../card/card.h"
#include "python.h"

namespace openspyre {

void throw_card_error(int code, const std::string& text) {
  TORCH_CHECK_INDEX(code != SPYRE_INDEX, text);
  const PyGILState_STATE gil = PyGILState_Ensure();
  {
    const Owned errors(PyImport_ImportModule("openspyre.errors"));
    const Owned type(errors ? PyObject_GetAttrString(errors.get(), "CardError") : nullptr);
    if (type) PyErr_SetString(type.get(), text.c_str());
  }
  python_error raised;
  raised.persist();
  PyGILState_Release(gil);
  throw raised;
}

}  // namespace openspyre
