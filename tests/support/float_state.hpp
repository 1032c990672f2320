// SPDX-License-Identifier: Apache-2.0
// float_state.hpp - the floating-point state of this thread, read from the processor
#ifndef ROPE_TESTS_SUPPORT_FLOAT_STATE_HPP
#define ROPE_TESTS_SUPPORT_FLOAT_STATE_HPP

#include <fenv.h>

#include <array>
#include <cstdint>

// The control bits for arithmetic, including flush to zero and traps, and the exception flags.
inline std::array<uint64_t, 2> float_state() {
#if defined(__x86_64__)
  return {__builtin_ia32_stmxcsr(), 0};
#elif defined(__aarch64__)
  uint64_t control, flags;
  __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(control), "=r"(flags));
  return {control, flags};
#else
  return {static_cast<uint64_t>(fegetround()), static_cast<uint64_t>(fetestexcept(FE_ALL_EXCEPT))};
#endif
}

// <fenv.h> has no function for this.
inline void flush_to_zero() {
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);  // results and operands
#elif defined(__aarch64__)
  uint64_t control;
  __asm__ volatile("mrs %0, fpcr" : "=r"(control));
  __asm__ volatile("msr fpcr, %0" : : "r"(control | uint64_t{1} << 24));
#endif
}

#endif
