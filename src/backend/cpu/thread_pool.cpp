// thread_pool.cpp - a pool of pthreads that exists only once it is used, and not in a forked child
#include "backend/cpu/thread_pool.hpp"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <unistd.h>

namespace rope {

namespace {

constexpr int kMaxWorkers = 255;

struct Pool {
  pthread_mutex_t owner;  // held by the one call that uses the pool
  pthread_mutex_t mutex;  // guards what follows
  pthread_cond_t has_work;
  pthread_cond_t is_done;
  void (*task)(void *, int);
  void *context;
  int num_tasks;
  int next;        // first task that nobody has taken
  int unfinished;  // tasks not finished
  int num_workers;
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
                           0};

Pool pool = kNewPool;
pthread_once_t fork_handler_once = PTHREAD_ONCE_INIT;

// A child has none of its parent's threads, and locks in whatever state they were.
void forget_pool() {
  pool = kNewPool;
}

void install_fork_handler() {
  pthread_atfork(nullptr, nullptr, forget_pool);
}

// With pool.mutex held: does tasks until none is left.
void take_tasks() {
  while (pool.next < pool.num_tasks) {
    const int index = pool.next++;
    pthread_mutex_unlock(&pool.mutex);
    pool.task(pool.context, index);
    pthread_mutex_lock(&pool.mutex);
    if (--pool.unfinished == 0) pthread_cond_signal(&pool.is_done);
  }
}

void *work(void *) {
  pthread_mutex_lock(&pool.mutex);
  for (;;) {
    take_tasks();
    pthread_cond_wait(&pool.has_work, &pool.mutex);
  }
}

// With pool.mutex held. The program's signal handlers must not run on these threads.
void start_workers(int wanted) {
  if (pool.num_workers >= wanted) return;
  sigset_t all, previous;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &previous);
  while (pool.num_workers < wanted) {
    pthread_t thread;
    if (pthread_create(&thread, nullptr, work, nullptr) != 0) break;
    pthread_detach(thread);
    ++pool.num_workers;
  }
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
}

}  // namespace

void run_tasks(int num_tasks, void (*task)(void *, int), void *context) {
  if (num_tasks > 1) {
    pthread_once(&fork_handler_once, install_fork_handler);
    if (pthread_mutex_trylock(&pool.owner) == 0) {
      pthread_mutex_lock(&pool.mutex);
      start_workers(num_tasks - 1 < kMaxWorkers ? num_tasks - 1 : kMaxWorkers);
      pool.task = task;
      pool.context = context;
      pool.num_tasks = num_tasks;
      pool.next = 0;
      pool.unfinished = num_tasks;
      pthread_cond_broadcast(&pool.has_work);
      take_tasks();
      while (pool.unfinished > 0) pthread_cond_wait(&pool.is_done, &pool.mutex);
      pthread_mutex_unlock(&pool.mutex);
      pthread_mutex_unlock(&pool.owner);
      return;
    }
  }
  for (int index = 0; index < num_tasks; ++index) task(context, index);
}

int count_usable_processors() {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) return CPU_COUNT(&mask);
  const long online = sysconf(_SC_NPROCESSORS_ONLN);  // more processors than the mask holds
  return online > 0 ? static_cast<int>(online) : 1;
}

}  // namespace rope
