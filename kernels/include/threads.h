// One pool of threads for all operators. The caller's thread works too; what is done never depends on which
// thread does it, so results are the same for any number of threads.
#pragma once

#include <cstdint>
#include <type_traits>

namespace sluice {

// How many threads compute, the caller's included.
int num_threads();

// Calls `work(context, task)` once for each task below `num_tasks`, on all threads, and waits for all of it.
void run_tasks(int num_tasks, void (*work)(const void* context, int task), const void* context);

// The same for a callable. One task, or one thread, costs no synchronisation.
template <class Work>
void parallel_for(int num_tasks, const Work& work) {
  if (num_tasks <= 1 || num_threads() == 1) {
    for (int task = 0; task < num_tasks; ++task) work(task);
    return;
  }
  run_tasks(num_tasks, [](const void* context, int task) { (*static_cast<const Work*>(context))(task); }, &work);
}

// Calls `work(first, last)` for ranges that together are [0, count), of at least `grain` each where there are
// as many: what is too small to share stays on the caller's thread.
template <class Work>
void parallel_ranges(int count, int grain, const Work& work) {
  int pieces = count / grain < num_threads() * 4 ? count / grain : num_threads() * 4;
  if (pieces <= 1) {
    if (count > 0) work(0, count);
    return;
  }
  parallel_for(pieces, [&](int piece) {
    work(int(int64_t(count) * piece / pieces), int(int64_t(count) * (piece + 1) / pieces));
  });
}

}  // namespace sluice
