#include "pool.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace wager {
namespace {

// How long a worker looks for the next block before it sleeps. The blocks of a step follow one
// another within a few microseconds; between steps nobody spins.
constexpr auto SPIN = std::chrono::microseconds(50);

void pause() {
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Spins briefly, then gives the core away: whoever is awaited may need it.
class Patience {
public:
    void wait() {
        if (++spins_ < 2000) pause();
        else std::this_thread::yield();
    }

private:
    int spins_ = 0;
};

}  // namespace

ThreadPool::ThreadPool(int threads)
    : count_(std::max(1, threads)),
      owner_(int(getpid())),
      next_(new Counter[size_t(MAX_PHASES * count_)]) {
    for (int i = 1; i < count_; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
    stop_.store(true);
    epoch_.fetch_add(1);
    epoch_.notify_all();
    for (std::thread& worker : workers_) {
        // A forked child never had these threads: there is nothing to wait for.
        if (int(getpid()) == owner_) worker.join();
        else worker.detach();
    }
}

void ThreadPool::run(const Phase* phases, int count, void* context) {
    for (int phase = 0; phase < count; ++phase) {
        done_[phase].value.store(0, std::memory_order_relaxed);
        for (int t = 0; t < count_; ++t) next(phase, t).value.store(0, std::memory_order_relaxed);
    }
    phases_ = phases;
    phase_count_ = count;
    context_ = context;
    if (count_ > 1) {
        inside_.store(0, std::memory_order_release);
        // Sequentially consistent, as are the two operations in work(): either the worker sees the
        // new epoch before it sleeps, or it is seen here to be asleep.
        epoch_.fetch_add(1);
        if (asleep_.load() > 0) epoch_.notify_all();
    }
    take_part(0);
    if (count_ > 1) {
        // Nobody may enter any more; who is inside is about to leave.
        inside_.fetch_or(CLOSED, std::memory_order_acq_rel);
        Patience patience;
        while (inside_.load(std::memory_order_acquire) != CLOSED) patience.wait();
    }
}

void ThreadPool::work(int self) {
    uint32_t seen = 0;
    while (true) {
        const auto until = std::chrono::steady_clock::now() + SPIN;
        for (int i = 1; epoch_.load(std::memory_order_acquire) == seen; ++i) {
            pause();
            if (i % 64 == 0 && std::chrono::steady_clock::now() > until) {
                asleep_.fetch_add(1);
                epoch_.wait(seen);
                asleep_.fetch_sub(1);
            }
        }
        seen = epoch_.load(std::memory_order_acquire);
        if (stop_.load()) return;
        int inside = inside_.load(std::memory_order_acquire);
        while (!(inside & CLOSED)) {
            if (inside_.compare_exchange_weak(inside, inside + 1, std::memory_order_acq_rel)) {
                take_part(self);
                inside_.fetch_sub(1, std::memory_order_acq_rel);
                break;
            }
        }
    }
}

void ThreadPool::take_part(int self) {
    for (int phase = 0; phase < phase_count_; ++phase) finish_phase(self, phase);
}

void ThreadPool::finish_phase(int self, int phase) {
    const Phase& work = phases_[phase];
    const int64_t jobs = work.jobs;
    int64_t mine = 0;
    for (int i = 0; i < count_; ++i) {
        const int owner = (self + i) % count_;
        const int64_t begin = jobs * owner / count_, end = jobs * (owner + 1) / count_;
        std::atomic<int64_t>& taken = next(phase, owner).value;
        while (begin + taken.load(std::memory_order_relaxed) < end) {
            const int64_t job = begin + taken.fetch_add(1, std::memory_order_relaxed);
            if (job >= end) break;
            work.run(context_, job);
            ++mine;
        }
    }
    std::atomic<int64_t>& done = done_[phase].value;
    if (mine) done.fetch_add(mine, std::memory_order_acq_rel);
    Patience patience;
    while (done.load(std::memory_order_acquire) < jobs) patience.wait();
}

}  // namespace wager
