// float_environment.hpp - the floating-point environment that the library computes in
//
// Rounding to nearest, subnormal numbers kept, no exception trapped: what every process starts with. A caller may have
// changed it for its thread, and a new thread inherits it. <fenv.h> saves more than is needed: 190 ns against 8 (AMD EPYC
// 9004, 2026-11-22).
#pragma once

#include <stdint.h>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <fenv.h>
#endif

namespace rope {

#if defined(__x86_64__)

// MXCSR: control bits and the exception flags. Nothing here computes by the x87 unit.
struct FloatEnvironment {
  uint32_t mxcsr;
};

// Each keeps memory accesses, and arithmetic on what they read, on its side; not that on values in registers.
inline FloatEnvironment float_environment() {
  FloatEnvironment environment;
  __asm__ volatile("stmxcsr %0" : "=m"(environment.mxcsr) : : "memory");
  return environment;
}

inline void set_float_environment(const FloatEnvironment &environment) {
  __asm__ volatile("ldmxcsr %0" : : "m"(environment.mxcsr) : "memory");
}

inline void set_default_float_environment() {
  set_float_environment({0x1f80});
}

#elif defined(__aarch64__)

struct FloatEnvironment {
  uint64_t fpcr;  // control
  uint64_t fpsr;  // exception flags
};

inline FloatEnvironment float_environment() {
  FloatEnvironment environment;
  __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(environment.fpcr), "=r"(environment.fpsr) : : "memory");
  return environment;
}

inline void set_float_environment(const FloatEnvironment &environment) {
  __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1" : : "r"(environment.fpcr), "r"(environment.fpsr) : "memory");
}

inline void set_default_float_environment() {
  set_float_environment({0, 0});
}

#else

using FloatEnvironment = fenv_t;

inline FloatEnvironment float_environment() {
  FloatEnvironment environment;
  fegetenv(&environment);
  return environment;
}

inline void set_float_environment(const FloatEnvironment &environment) {
  fesetenv(&environment);
}

inline void set_default_float_environment() {
  fesetenv(FE_DFL_ENV);
}

#endif

// The default environment until the scope ends; then that of before, the exception flags included.
class FloatEnvironmentScope {
 public:
  FloatEnvironmentScope() : before_(float_environment()) { set_default_float_environment(); }
  ~FloatEnvironmentScope() { set_float_environment(before_); }
  FloatEnvironmentScope(const FloatEnvironmentScope &) = delete;
  FloatEnvironmentScope &operator=(const FloatEnvironmentScope &) = delete;

 private:
  const FloatEnvironment before_;
};

}  // namespace rope
