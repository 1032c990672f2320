// SPDX-License-Identifier: Apache-2.0
// thread_pool.cpp - a pool of pthreads that is created at its first use, and again in a forked child
#include "backend/cpu/thread_pool.hpp"

#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>

#include "backend/cpu/task_memory.hpp"
#include "core/math/float_environment.hpp"

namespace rope {

namespace {

struct Pool {
  pthread_mutex_t owner;  // held by the one call that uses the pool
  pthread_mutex_t mutex;  // guards the following members
  pthread_cond_t has_work;
  pthread_cond_t is_done;
  void (*task)(void *, int);
  void *context;
  int num_tasks;
  int next;        // first task not yet taken
  int unfinished;  // tasks not finished
  int num_workers;
  int num_idle;  // workers waiting for has_work
};

constexpr Pool kNewPool = {PTHREAD_MUTEX_INITIALIZER,
                           PTHREAD_MUTEX_INITIALIZER,
                           PTHREAD_COND_INITIALIZER,
                           PTHREAD_COND_INITIALIZER,
                           nullptr,
                           nullptr,
                           0,
                           0,
                           0,
                           0,
                           0};

Pool pool = kNewPool;
pthread_once_t fork_handler_once = PTHREAD_ONCE_INIT;

// A forked child lacks its parent's threads, and the locks are in an unknown state, so it starts with a new pool.
void forget_pool() {
  pool = kNewPool;
}

void install_fork_handler() {
  pthread_atfork(nullptr, nullptr, forget_pool);
}

// Requires pool.mutex. Runs tasks until none is left.
void take_tasks() {
  while (pool.next < pool.num_tasks) {
    const int index = pool.next++;
    pthread_mutex_unlock(&pool.mutex);
    pool.task(pool.context, index);
    pthread_mutex_lock(&pool.mutex);
    if (--pool.unfinished == 0) pthread_cond_signal(&pool.is_done);
  }
}

constexpr int kFaults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};

// Signals from outside are blocked, so that the program's handlers do not run on these threads. Signals for faults stay
// unblocked: a fault whose signal is blocked ends the process.
void block_signals_from_outside() {
  sigset_t from_outside;
  sigfillset(&from_outside);
  for (const int fault : kFaults) sigdelset(&from_outside, fault);
  pthread_sigmask(SIG_SETMASK, &from_outside, nullptr);
}

void *work(void *) {
  block_signals_from_outside();
  set_default_float_environment();
  pthread_mutex_lock(&pool.mutex);
  for (;;) {
    take_tasks();
    ++pool.num_idle;
    pthread_cond_wait(&pool.has_work, &pool.mutex);
    --pool.num_idle;
  }
}

// The second part is for the program's handlers of faults in its tensors (rope.h), the last for the frames of signals,
// with registers of the largest extensions, and for the thread's start.
constexpr size_t kWorkerStackBytes = kMaxCallStackBytes + (size_t{128} << 10) + (size_t{16} << 10);

// The size of all libraries' thread-local variables, which may lie in a thread's stack.
size_t thread_local_bytes;

int add_thread_local_bytes(dl_phdr_info *library, size_t, void *) {
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const auto &segment = library->dlpi_phdr[i];
    if (segment.p_type == PT_TLS) thread_local_bytes += segment.p_memsz + segment.p_align;
  }
  return 0;
}

// Runs when librope is loaded. Later it could run in a forked child, in which the loader's lock may be held forever.
__attribute__((constructor)) void find_thread_local_bytes() {
  dl_iterate_phdr(add_thread_local_bytes, nullptr);
}

// Starts one worker. Returns false if the system cannot create another thread.
bool start_worker(const pthread_attr_t *attributes) {
  pthread_t thread;
  return pthread_create(&thread, attributes, work, nullptr) == 0;
}

// Requires pool.mutex. All signals are blocked during the start: a worker must not receive one before it sets its own
// mask.
void start_workers(int wanted) {
  if (pool.num_workers >= wanted) return;
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  size_t default_stack;
  pthread_attr_getstacksize(&attributes, &default_stack);
  sigset_t all, previous;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &previous);
  constexpr size_t kUnit = size_t{64} << 10;  // a multiple of every page size
  const size_t stack = (kWorkerStackBytes + thread_local_bytes + kUnit - 1) / kUnit * kUnit;
  for (; pool.num_workers < wanted; ++pool.num_workers) {
    pthread_attr_setstacksize(&attributes, stack);
    if (start_worker(&attributes)) continue;
    pthread_attr_setstacksize(&attributes, default_stack);
    if (!start_worker(&attributes)) break;
  }
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  pthread_attr_destroy(&attributes);
}

// Requires pool.mutex. Wakes as many idle workers as there are tasks for them.
void wake_workers(int wanted) {
  if (wanted >= pool.num_idle) {
    pthread_cond_broadcast(&pool.has_work);
  } else {
    for (int i = 0; i < wanted; ++i) pthread_cond_signal(&pool.has_work);
  }
}

}  // namespace

void run_tasks(int num_tasks, void (*task)(void *, int), void *context) {
  if (num_tasks > 1) {
    pthread_once(&fork_handler_once, install_fork_handler);
    if (pthread_mutex_trylock(&pool.owner) == 0) {
      pthread_mutex_lock(&pool.mutex);
      const int num_helpers = num_tasks - 1 < kMaxWorkers ? num_tasks - 1 : kMaxWorkers;
      start_workers(num_helpers);
      pool.task = task;
      pool.context = context;
      pool.num_tasks = num_tasks;
      pool.next = 0;
      pool.unfinished = num_tasks;
      wake_workers(num_helpers);
      take_tasks();
      while (pool.unfinished > 0) pthread_cond_wait(&pool.is_done, &pool.mutex);
      pthread_mutex_unlock(&pool.mutex);
      pthread_mutex_unlock(&pool.owner);
      return;
    }
  }
  for (int index = 0; index < num_tasks; ++index) task(context, index);
}

}  // namespace rope
