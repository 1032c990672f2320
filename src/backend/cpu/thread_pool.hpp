// thread_pool.hpp - runs the parts of one CPU call on several threads
#pragma once

namespace rope {

// Calls task(context, i) for every i from 0 to num_tasks - 1 and returns when all have finished. The calling thread
// works too. Threads are started on first need and kept; where they cannot be had, or while another call has them, the
// calling thread does the work of all. They compute in the default floating-point environment. Never fails; not to be
// cancelled.
void run_tasks(int num_tasks, void (*task)(void *context, int index), void *context);

}  // namespace rope
