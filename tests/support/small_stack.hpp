// SPDX-License-Identifier: Apache-2.0
// small_stack.hpp - runs code on a thread with a small stack, and measures how much of it the code needs
#ifndef ROPE_TESTS_SUPPORT_SMALL_STACK_HPP
#define ROPE_TESTS_SUPPORT_SMALL_STACK_HPP

#include <cstddef>
#include <functional>

// rope.h: no CPU call needs more.
constexpr size_t max_call_stack = size_t{48} << 10;

// Whether the library's frames are those of a release. Without optimisation and under sanitizers they are larger.
bool has_frames_of_release();

// Runs `code` on a thread whose stack was painted, and returns the bytes below this function's caller that have another
// colour afterwards.
size_t stack_of(const std::function<void()> &code);

// Runs `code` on a thread whose stack has `bytes` for its frames. The thread's descriptor and the thread-local variables
// of all libraries, which a driver of CUDA has many of, lie in the same memory and come on top.
void run_on_stack(size_t bytes, const std::function<void()> &code);

#endif
