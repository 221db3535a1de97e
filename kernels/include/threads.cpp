#include "threads.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sluice {
namespace {

// Operators follow one another within microseconds, so threads watch for the next one a while before they sleep.
constexpr int kLooksBeforeSleep = 20000;
constexpr int kLooksBeforeYield = 2000;

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

class Pool {
 public:
  explicit Pool(int num_threads) {
    for (int i = 1; i < num_threads; ++i) helpers_.emplace_back([this] { help(); });
  }

  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_.store(true);
    }
    wake_.notify_all();
    for (auto& helper : helpers_) helper.join();
  }

  int size() const { return int(helpers_.size()) + 1; }

  void run(int num_tasks, void (*work)(const void*, int), const void* context) {
    std::lock_guard<std::mutex> one_caller(caller_);
    work_ = work;
    context_ = context;
    num_tasks_ = num_tasks;
    num_done_.store(0, std::memory_order_relaxed);
    ++round_;
    tickets_.store(uint64_t(round_) << 32 | uint32_t(num_tasks), std::memory_order_seq_cst);
    if (num_asleep_.load(std::memory_order_seq_cst) > 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      wake_.notify_all();
    }
    while (do_one_task()) {
    }
    // A helper that the system has put aside holds up nobody unless it has a task.
    for (int looks = 0; num_done_.load(std::memory_order_acquire) < num_tasks; ++looks)
      looks < kLooksBeforeYield ? relax() : std::this_thread::yield();
  }

 private:
  // Takes a task if one is left. The ticket holds the round, so that a late helper cannot take one of a round
  // that is over; and a round is not over before all its tasks are done, so what a taken one needs is in place.
  bool do_one_task() {
    uint64_t ticket = tickets_.load(std::memory_order_acquire);
    while (uint32_t(ticket) != 0) {
      if (tickets_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel)) {
        work_(context_, num_tasks_ - int(uint32_t(ticket)));
        num_done_.fetch_add(1, std::memory_order_release);
        return true;
      }
    }
    return false;
  }

  void help() {
    while (!stopping_.load(std::memory_order_relaxed)) {
      for (int looks = 0; looks < kLooksBeforeSleep; ++looks)
        if (do_one_task())
          looks = 0;
        else
          relax();
      sleep_until_there_is_work();
    }
  }

  void sleep_until_there_is_work() {
    std::unique_lock<std::mutex> lock(mutex_);
    num_asleep_.fetch_add(1, std::memory_order_seq_cst);
    wake_.wait(lock, [&] { return uint32_t(tickets_.load(std::memory_order_seq_cst)) != 0 || stopping_.load(); });
    num_asleep_.fetch_sub(1, std::memory_order_relaxed);
  }

  std::vector<std::thread> helpers_;
  std::mutex caller_, mutex_;
  std::condition_variable wake_;
  std::atomic<bool> stopping_{false};
  void (*work_)(const void*, int) = nullptr;
  const void* context_ = nullptr;
  int num_tasks_ = 0;
  uint32_t round_ = 0;
  alignas(64) std::atomic<uint64_t> tickets_{0};
  alignas(64) std::atomic<int> num_done_{0};
  alignas(64) std::atomic<int> num_asleep_{0};
};

std::unique_ptr<Pool>& pool() {
  static std::unique_ptr<Pool> the_pool = std::make_unique<Pool>(1);
  return the_pool;
}

}  // namespace

int num_threads() { return pool()->size(); }

void run_tasks(int num_tasks, void (*work)(const void*, int), const void* context) {
  pool()->run(num_tasks, work, context);
}

}  // namespace sluice

extern "C" {

// Computes with `count` threads from now on. Not while an operator runs.
void sluice_set_num_threads(int count) {
  if (count != sluice::num_threads()) sluice::pool() = std::make_unique<sluice::Pool>(count);
}
}
