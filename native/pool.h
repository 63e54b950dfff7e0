// A persistent group of threads that runs the phases of one block together with its caller.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace wager {

// `jobs` calls of run(context, job), in any order, on any thread. Phases follow one another: a phase
// begins when every job of the one before has ended.
struct Phase {
    int64_t jobs;
    void (*run)(void* context, int64_t job);
};

// Each thread starts with a contiguous share of the jobs and then helps the others, and a phase ends
// when its jobs have ended, not when every thread has come by: a worker that the system has not
// scheduled delays nobody. That keeps two groups on the same cores, and a forked child that has lost
// its workers, alive: the caller can do everything itself.
class ThreadPool {
public:
    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const { return count_; }
    void run(const Phase* phases, int count, void* context);

private:
    static constexpr int MAX_PHASES = 8;
    struct alignas(64) Counter { std::atomic<int64_t> value{0}; };

    void work(int self);
    void take_part(int self);
    void finish_phase(int self, int phase);
    Counter& next(int phase, int thread) { return next_[size_t(phase * count_ + thread)]; }

    int count_;
    int owner_;                                // process that made the threads
    std::vector<std::thread> workers_;
    std::unique_ptr<Counter[]> next_;          // [phase][thread]: jobs taken from its share
    Counter done_[MAX_PHASES];
    const Phase* phases_ = nullptr;
    int phase_count_ = 0;
    void* context_ = nullptr;

    alignas(64) std::atomic<uint32_t> epoch_{0};
    alignas(64) std::atomic<int> inside_{CLOSED};   // workers inside the current run
    alignas(64) std::atomic<int> asleep_{0};
    std::atomic<bool> stop_{false};
    static constexpr int CLOSED = 1 << 30;
};

}  // namespace wager
