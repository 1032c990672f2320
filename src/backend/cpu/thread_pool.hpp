// SPDX-License-Identifier: Apache-2.0
// thread_pool.hpp - runs the parts of one CPU call on several threads
#pragma once

namespace rope {

constexpr int kMaxWorkers = 255;

// Calls task(context, i) for every i from 0 to num_tasks - 1 and returns when all have finished. The calling thread
// takes part. Threads are started when first needed and kept. If none can be started, or if another call uses them, the
// calling thread runs all tasks. Tasks run in the default floating-point environment. Never fails; the calling thread
// must not be cancelled.
void run_tasks(int num_tasks, void (*task)(void *context, int index), void *context);

}  // namespace rope
