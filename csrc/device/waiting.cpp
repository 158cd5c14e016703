#include "waiting.h"

#include <unistd.h>

#include "python.h"

namespace openspyre {

WithoutGilIfHeld::WithoutGilIfHeld() : state_(PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}

WithoutGilIfHeld::~WithoutGilIfHeld() {
  if (state_) PyEval_RestoreThread(static_cast<PyThreadState*>(state_));
}

void handle_signals() {
  if (getpid() != gettid() || !Py_IsInitialized()) return;
  const WithGil held;
  if (!PyErr_Occurred() && PyErr_CheckSignals() != 0) throw_python_error();
}

}  // namespace openspyre
