// SPDX-License-Identifier: Apache-2.0
// call_scope.hpp - changes the caller's thread for the length of a call, and restores it
#pragma once

#include <pthread.h>

#include "core/math/float_environment.hpp"

namespace rope {

// Every function that computes, locks or waits creates one. It disables cancellation: a thread cancelled in between
// would leave locks held (the library's and the CUDA driver's) and other threads working on its stack. A cancellation
// request stays pending until the scope ends.
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
