// call_scope.hpp - what a call changes of its caller's thread, and puts back
#pragma once

#include <pthread.h>

#include "core/math/float_environment.hpp"

namespace rope {

// In every function that computes, locks or waits. Cancelled in between, a thread would leave locks held and other
// threads at work on its stack; the CUDA driver's locks too. A request to cancel stays pending until the scope ends.
class CallScope {
 public:
  CallScope() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state_); }
  ~CallScope() { pthread_setcancelstate(cancel_state_, nullptr); }
  CallScope(const CallScope &) = delete;
  CallScope &operator=(const CallScope &) = delete;

 private:
  int cancel_state_;
  FloatEnvironmentScope float_environment_;
};

}  // namespace rope
