// The emulator itself: fibres, what they wait for, and the CUDA runtime that launches them. Built without fortified
// longjmp, which takes a switch of stacks for an error.
#include "emulator.h"

#include <link.h>
#include <sched.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <barrier>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "background.h"
#include "gpu.h"
#include "shadow.h"

namespace emu {
namespace {

constexpr size_t kStack = 256 << 10;
constexpr int kMostBlocks = 16, kNamedBarriers = 16;
constexpr int kStaticOffset = 256 << 10;  // where 32-bit addresses of static shared memory begin
constexpr auto kPatience = std::chrono::seconds(10);

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
  bool zeros;
};

// What runs in the background, as late as a wait for its group allows.
struct Background {
  std::vector<std::function<void()>> open;
  std::deque<std::vector<std::function<void()>>> groups;

  void commit() { groups.push_back(std::exchange(open, {})); }
  void finish(size_t pending) {
    for (; groups.size() > pending; groups.pop_front()) {
      for (const auto& work : groups.front()) work();
    }
  }
};

struct Fibre {
  Place at;
  ucontext_t context;
  jmp_buf here;
  bool started = false, done = false;
  unsigned cluster_phase = 0;
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;
  Background stores, products;
  bool products_fenced = false;
};

// Lanes of a warp that meet.
struct Meeting {
  uint32_t mask;
  uint32_t arrived = 0;
  unsigned phase = 0;
  alignas(16) char given[2][32][256];
};

struct Counter {
  int arrived = 0;
  unsigned phase = 0;
};

// What the blocks of a cluster share.
struct Cluster {
  std::atomic<int> arrived = 0, threads = 0;
  std::atomic<unsigned> phase = 0;
  std::atomic<uint64_t> progress = 0;
  std::atomic<bool> failed = false;
  std::mutex mutex;
  std::string message;
  std::multimap<uint64_t*, std::pair<int, std::function<void()>>> late;
};

struct Window {
  char* statics = nullptr;
  size_t static_bytes = 0;
  char* dynamic = nullptr;
};

struct Launch {
  const void* kernel;
  void** arguments;
  Invoke invoke;
  char* (*marker)();
  dim3 grid, block;
  size_t dynamic_bytes;
  int blocks;  // of a cluster
  dim3 cluster_size;
  Cluster cluster;
  Window windows[kMostBlocks];
};

// A block while it runs, on its own thread of the machine.
struct Block {
  Launch* launch;
  int rank;
  std::vector<std::unique_ptr<Fibre>> fibres;
  int live = 0;
  Fibre* running = nullptr;
  jmp_buf scheduler;
  ucontext_t main;
  Counter barriers[kNamedBarriers];
  std::vector<std::unique_ptr<Meeting>> meetings[32];
};

thread_local Block* block = nullptr;
Shadow shadows[kMostBlocks];  // of the launch that runs, there is one at a time
thread_local Invoke next_invoke = nullptr;
thread_local char* (*next_marker)() = nullptr;

Fibre& self() { return *block->running; }

void leave() {
  if (_setjmp(self().here) == 0) _longjmp(block->scheduler, 1);
}

void note_failure(const std::string& message) {
  Cluster& cluster = block->launch->cluster;
  const std::lock_guard<std::mutex> lock(cluster.mutex);
  if (!cluster.failed) cluster.message = message;
  cluster.failed = true;
}

void finish_copies(Fibre& fibre, size_t pending) {
  for (; fibre.groups.size() > pending; fibre.groups.pop_front()) {
    for (const Copy& copy : fibre.groups.front()) {
      if (copy.zeros) {
        std::memset(copy.to, 0, copy.bytes);
      } else {
        std::memcpy(copy.to, copy.from, copy.bytes);
      }
    }
  }
}

// Those that have ended count as arrived.
void release(Counter& counter, int threads) {
  if (counter.arrived == 0 || counter.arrived < threads) return;
  counter.arrived = 0;
  ++counter.phase;
}

void release_cluster(Cluster& cluster) {
  int arrived = cluster.arrived;
  if (arrived > 0 && arrived >= cluster.threads && cluster.arrived.compare_exchange_strong(arrived, 0)) ++cluster.phase;
}

// A copy in no group is one that no wait waits for.
void check_committed() {
  if (!self().open.empty()) fail("a copy in the background that no commit puts into a group");
}

void end_fibre() {
  Fibre& fibre = self();
  fibre.stores.finish(0);
  fibre.done = true;
  --block->live;
  --block->launch->cluster.threads;
  ++block->launch->cluster.progress;
  release(block->barriers[0], block->live);
  release_cluster(block->launch->cluster);
}

void run_fibre() {
  try {
    const Launch& launch = *block->launch;
    launch.invoke(launch.kernel, launch.arguments);
    check_committed();
  } catch (const std::exception& error) {
    note_failure(error.what());
  }
  end_fibre();
  _longjmp(block->scheduler, 1);
}

char* stacks() {
  static thread_local char* memory = [] {
    void* all =
        mmap(nullptr, kStack * 1024, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return static_cast<char*>(all);
  }();
  return memory;
}

void go_on(Fibre& fibre, size_t index) {
  block->running = &fibre;
  if (_setjmp(block->scheduler) != 0) return;
  if (fibre.started) _longjmp(fibre.here, 1);
  fibre.started = true;
  getcontext(&fibre.context);
  fibre.context.uc_stack.ss_sp = stacks() + index * kStack;
  fibre.context.uc_stack.ss_size = kStack;
  fibre.context.uc_link = nullptr;
  makecontext(&fibre.context, run_fibre, 0);
  setcontext(&fibre.context);
}

// In the order of threads or against it: what lacks a barrier goes wrong in one of them.
void run_block(Launch& launch, int rank, uint3 index) {
  const bool reversed = number("WARPSMITH_EMULATOR_REVERSED", 0) != 0;
  Block mine;
  mine.launch = &launch;
  mine.rank = rank;
  const size_t threads = size_t{launch.block.x} * launch.block.y * launch.block.z;
  for (size_t i = 0; i < threads; ++i) {
    auto fibre = std::make_unique<Fibre>();
    const auto t = static_cast<unsigned>(i);
    fibre->at.thread = {t % launch.block.x, t / launch.block.x % launch.block.y, t / (launch.block.x * launch.block.y)};
    fibre->at.block = index;
    fibre->at.block_size = launch.block;
    fibre->at.grid_size = launch.grid;
    mine.fibres.push_back(std::move(fibre));
  }
  mine.live = static_cast<int>(threads);
  block = &mine;
  Cluster& cluster = launch.cluster;
  uint64_t seen = cluster.progress;
  auto since = std::chrono::steady_clock::now();
  while (mine.live > 0 && !cluster.failed) {
    for (size_t i = 0; i < threads && !cluster.failed; ++i) {
      const size_t next = reversed ? threads - 1 - i : i;
      if (!mine.fibres[next]->done) go_on(*mine.fibres[next], next);
    }
    const auto now = std::chrono::steady_clock::now();
    if (cluster.progress != seen) {
      seen = cluster.progress;
      since = now;
    } else if (launch.blocks == 1 || now - since > kPatience) {
      note_failure("deadlock: every thread waits for another");
    } else {
      sched_yield();
    }
  }
  block = nullptr;
}

struct Segment {
  const void* address;
  char* begin = nullptr;
  size_t bytes = 0;
};

// This thread's copy of a library's thread-local variables.
Segment segment_of(const void* address) {
  Segment wanted{address};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& found = *static_cast<Segment*>(data);
        const auto at = reinterpret_cast<uintptr_t>(found.address);
        bool holds = false;
        size_t bytes = 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& part = info->dlpi_phdr[i];
          const uintptr_t begin = info->dlpi_addr + part.p_vaddr;
          if (part.p_type == PT_LOAD && at >= begin && at < begin + part.p_memsz) holds = true;
          if (part.p_type == PT_TLS) bytes = part.p_memsz;
        }
        if (!holds) return 0;
        found.begin = static_cast<char*>(info->dlpi_tls_data);
        found.bytes = bytes;
        return 1;
      },
      &wanted);
  return wanted;
}

void prepare_window(Launch& launch, int rank) {
  static thread_local char* dynamic = static_cast<char*>(std::aligned_alloc(1024, kStaticOffset));
  launch.marker();  // so that this thread has its copy
  const Segment segment = segment_of(reinterpret_cast<const void*>(launch.marker));
  launch.windows[rank] = {segment.begin, segment.bytes, dynamic};
  std::memset(segment.begin, 0xff, segment.bytes);
}

void run_worker(Launch& launch, int rank, std::barrier<>& together) {
  prepare_window(launch, rank);
  const unsigned blocks = launch.grid.x * launch.grid.y * launch.grid.z;
  for (unsigned first = 0; first < blocks && !launch.cluster.failed; first += launch.blocks) {
    std::memset(launch.windows[rank].dynamic, 0xff, launch.dynamic_bytes);
    shadows[rank].begin(launch.windows[rank].dynamic, launch.dynamic_bytes);
    if (rank == 0)
      launch.cluster.threads = static_cast<int>(launch.block.x * launch.block.y * launch.block.z) * launch.blocks;
    together.arrive_and_wait();
    const dim3 size = launch.cluster_size, clusters(launch.grid.x / size.x, launch.grid.y / size.y);
    const unsigned c = first / launch.blocks, r = static_cast<unsigned>(rank);
    run_block(launch, rank,
              {c % clusters.x * size.x + r % size.x, c / clusters.x % clusters.y * size.y + r / size.x % size.y,
               c / (clusters.x * clusters.y) * size.z + r / (size.x * size.y)});
    together.arrive_and_wait();
    if (rank == 0) {
      launch.cluster.late.clear();
      launch.cluster.arrived = 0;
    }
  }
}

thread_local std::string last_error;

// Threads of the machine for the blocks of a cluster; they outlive a launch and keep their stacks.
class Workers {
 public:
  void run(int count, const std::function<void(int)>& task) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (; size_ < count; ++size_) std::thread([this, rank = size_] { serve(rank); }).detach();
    task_ = &task;
    wanted_ = left_ = count;
    ++turn_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return left_ == 0; });
  }

 private:
  void serve(int rank) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (unsigned seen = 0;;) {
      changed_.wait(lock, [&] { return turn_ != seen; });
      seen = turn_;
      if (rank >= wanted_) continue;
      lock.unlock();
      (*task_)(rank);
      lock.lock();
      if (--left_ == 0) changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(int)>* task_ = nullptr;
  int size_ = 0, wanted_ = 0, left_ = 0;
  unsigned turn_ = 0;
};

void run(Launch& launch) {
  static Workers& workers = *new Workers;  // never destroyed: its threads wait to the end
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  std::barrier<> together(launch.blocks);
  workers.run(launch.blocks, [&](int rank) { run_worker(launch, rank, together); });
}

}  // namespace

const Place& place() { return self().at; }

void fail(const char* message) {
  const Place& at = self().at;
  throw std::runtime_error(std::string(message) + ", thread " + std::to_string(at.thread.x) + " of block " +
                           std::to_string(at.block.x));
}

void wait_until(const std::function<bool()>& ready) {
  while (!ready()) leave();
  ++block->launch->cluster.progress;
}

void sync_some(int barrier, int threads) {
  Counter& counter = block->barriers[barrier];
  const unsigned phase = counter.phase;
  ++counter.arrived;
  release(counter, threads);
  wait_until([&] { return counter.phase != phase; });
}

void arrive_some(int barrier, int threads) {
  Counter& counter = block->barriers[barrier];
  ++counter.arrived;
  release(counter, threads);
  ++block->launch->cluster.progress;
}

void sync_threads() { sync_some(0, block->live); }

int cluster_rank() { return block->rank; }

void cluster_arrive() {
  Cluster& cluster = block->launch->cluster;
  self().cluster_phase = cluster.phase;
  ++cluster.arrived;
  release_cluster(cluster);
}

void cluster_wait() {
  wait_until([] { return block->launch->cluster.phase != self().cluster_phase; });
}

void* dynamic_shared(size_t alignment) {
  check_aligned(block->launch->windows[block->rank].dynamic, alignment, "shared memory");
  return block->launch->windows[block->rank].dynamic;
}

uint32_t shared_offset(const void* p) {
  const Window& window = block->launch->windows[block->rank];
  const auto* at = static_cast<const char*>(p);
  if (at >= window.dynamic && at < window.dynamic + kStaticOffset) return static_cast<uint32_t>(at - window.dynamic);
  if (at < window.statics || at >= window.statics + window.static_bytes) fail("an address outside shared memory");
  return static_cast<uint32_t>(at - window.statics) + kStaticOffset;
}

void* in_block(void* p, int rank) {
  if (rank < 0 || rank >= block->launch->blocks) fail("no such block in the cluster");
  const uint32_t offset = shared_offset(p);
  const Window& window = block->launch->windows[rank];
  return offset < kStaticOffset ? window.dynamic + offset : window.statics + (offset - kStaticOffset);
}

void exchange_bytes(uint32_t mask, const void* mine, size_t bytes, void* all) {
  const Place& at = self().at;
  const unsigned thread = at.thread.x + at.block_size.x * (at.thread.y + at.block_size.y * at.thread.z);
  const auto there = static_cast<unsigned>(block->fibres.size()) - thread / 32 * 32;
  const uint32_t wanted = there >= 32 ? mask : mask & ((1u << there) - 1);
  const unsigned mine_at = thread % 32;
  if ((wanted >> mine_at & 1) == 0) fail("a lane takes part that its mask leaves out");
  auto& meetings = block->meetings[thread / 32];
  auto found = std::find_if(meetings.begin(), meetings.end(), [&](const auto& m) { return m->mask == wanted; });
  if (found == meetings.end()) {
    meetings.push_back(std::make_unique<Meeting>());
    found = meetings.end() - 1;
    (*found)->mask = wanted;
  }
  Meeting& meeting = **found;
  const unsigned phase = meeting.phase;
  std::memcpy(meeting.given[phase & 1][mine_at], mine, bytes);
  meeting.arrived |= 1u << mine_at;
  if (meeting.arrived == wanted) {
    meeting.arrived = 0;
    ++meeting.phase;
  }
  wait_until([&] { return meeting.phase != phase; });
  for (unsigned i = 0; i < 32; ++i) {
    const void* from = (wanted >> i & 1) != 0 ? meeting.given[phase & 1][i] : mine;
    std::memcpy(static_cast<char*>(all) + i * bytes, from, bytes);
  }
}

void check_aligned(const void* p, size_t to, const char* what) {
  if (reinterpret_cast<uintptr_t>(p) % to != 0) fail((std::string("misaligned: ") + what).c_str());
}

void copy_later(void* to, const void* from, size_t bytes, bool zeros) {
  check_aligned(to, bytes, "a copy's shared side");
  if (!zeros) check_aligned(from, bytes, "a copy's global side");
  shared_offset(to);
  self().open.push_back({to, from, bytes, zeros});
}

void commit_copies() { self().groups.push_back(std::move(self().open)); }

void wait_copies(int pending) {
  if (pending == 0) check_committed();
  finish_copies(self(), static_cast<size_t>(pending));
}

// --- barriers in shared memory: bit 0 the phase, arrivals of a phase, arrivals missing, bytes missing ----------------

namespace {

struct State {
  uint16_t phase : 1, arrivals : 15;
  uint16_t missing;
  int32_t bytes;
};
static_assert(sizeof(State) == sizeof(uint64_t));

void change(uint64_t* barrier, const std::function<void(State&)>& by) {
  check_aligned(barrier, 8, "an mbarrier");
  std::atomic_ref<uint64_t> word(*barrier);
  uint64_t old = word.load(), now;
  do {
    State state = std::bit_cast<State>(old);
    by(state);
    if (state.missing == 0 && state.bytes == 0) {
      state.phase ^= 1;
      state.missing = state.arrivals;
    }
    now = std::bit_cast<uint64_t>(state);
  } while (!word.compare_exchange_weak(old, now));
  ++block->launch->cluster.progress;
}

bool make_late_copy(uint64_t* barrier) {
  Cluster& cluster = block->launch->cluster;
  std::pair<int, std::function<void()>> copy;
  {
    const std::lock_guard<std::mutex> lock(cluster.mutex);
    const auto found = cluster.late.find(barrier);
    if (found == cluster.late.end()) return false;
    copy = std::move(found->second);
    cluster.late.erase(found);
  }
  copy.second();
  barrier_complete(barrier, copy.first);
  return true;
}

}  // namespace

void barrier_init(uint64_t* barrier, int arrivals) {
  const auto count = static_cast<uint16_t>(arrivals);
  std::atomic_ref<uint64_t>(*barrier).store(std::bit_cast<uint64_t>(State{0, count, count, 0}));
  Shadow& shadow = shadows[block->rank];
  const std::lock_guard<std::mutex> lock(shadow.mutex);
  shadow.hide_barrier(barrier);
}

void barrier_arrive(uint64_t* barrier, int bytes) {
  change(barrier, [&](State& state) {
    if (state.missing == 0) fail("an mbarrier gets more arrivals than it counts");
    --state.missing;
    state.bytes += bytes;
  });
}

void barrier_complete(uint64_t* barrier, int bytes) {
  change(barrier, [&](State& state) { state.bytes -= bytes; });
}

void barrier_wait_unread(uint64_t* barrier, int parity) {
  wait_until([=] {
    const auto done = [=] {
      return std::bit_cast<State>(std::atomic_ref<uint64_t>(*barrier).load()).phase != (parity & 1);
    };
    while (!done() && make_late_copy(barrier)) {
    }
    return done();
  });
}

void barrier_wait(uint64_t* barrier, int parity) {
  barrier_wait_unread(barrier, parity);
  Shadow& shadow = shadows[block->rank];
  const std::lock_guard<std::mutex> lock(shadow.mutex);
  shadow.observe(barrier, &self());
}

void arrive_later(uint64_t* barrier, int bytes, std::function<void()> copy) {
  Cluster& cluster = block->launch->cluster;
  const std::lock_guard<std::mutex> lock(cluster.mutex);
  cluster.late.emplace(barrier, std::pair(bytes, std::move(copy)));
  ++cluster.progress;
}

void fence_async() {
  Shadow& shadow = shadows[block->rank];
  const std::lock_guard<std::mutex> lock(shadow.mutex);
  shadow.fence(&self());
}

void fence_barriers() {
  Shadow& shadow = shadows[block->rank];
  const std::lock_guard<std::mutex> lock(shadow.mutex);
  shadow.show_barriers();
}

void load_later(void* shared, int bytes, uint64_t* barrier, int rank, std::function<void(char* to)> write) {
  auto* const counted_on = static_cast<uint64_t*>(in_block(barrier, rank));
  Shadow::Copy copy{static_cast<char*>(in_block(shared, rank)), static_cast<size_t>(bytes), counted_on, {}};
  Shadow& shadow = shadows[rank];
  std::string wrong;
  {
    const std::lock_guard<std::mutex> lock(shadow.mutex);
    wrong = shadow.start(copy);
  }
  if (!wrong.empty()) fail(wrong.c_str());
  arrive_later(counted_on, bytes, [&shadow, copy = std::move(copy), write = std::move(write)] {
    const std::lock_guard<std::mutex> lock(shadow.mutex);
    shadow.land(copy, write);
  });
}

void store_later(void* global, const void* shared, int bytes) {
  check_aligned(shared, 16, "a bulk copy's shared side");
  check_aligned(global, 16, "a bulk copy's global side");
  if (bytes % 16 != 0) fail("a bulk copy of a number of bytes that 16 does not divide");
  const uint32_t from = shared_offset(shared);
  run_store_later([=] { read_async(from, global, static_cast<size_t>(bytes)); });
}

void run_store_later(std::function<void()> store) { self().stores.open.push_back(std::move(store)); }

void commit_stores() { self().stores.commit(); }

void wait_stores(int pending) { self().stores.finish(static_cast<size_t>(pending)); }

void read_async(uint32_t address, void* to, size_t bytes) {
  const Window& window = block->launch->windows[block->rank];
  char* const from = address < kStaticOffset ? window.dynamic + address : window.statics + (address - kStaticOffset);
  Shadow& shadow = shadows[block->rank];
  const std::lock_guard<std::mutex> lock(shadow.mutex);
  std::memcpy(to, shadow.view(from, bytes), bytes);
}

void fence_products() { self().products_fenced = true; }

void multiply_later(std::function<void()> product) {
  if (!self().products_fenced) fail("wgmma without wgmma_fence() since its thread last waited for one");
  self().products.open.push_back(std::move(product));
}

void commit_products() { self().products.commit(); }

void wait_products(int pending) {
  self().products.finish(static_cast<size_t>(pending));
  self().products_fenced = false;
}

void next_launch(Invoke invoke, char* (*marker)()) {
  next_invoke = invoke;
  next_marker = marker;
}

}  // namespace emu

// --- the CUDA runtime ------------------------------------------------------------------------------------------------

namespace {

int blocks_of_a_cluster(const cudaLaunchConfig_t& config) {
  const dim3 size = emu::cluster_size(config);
  return static_cast<int>(size.x * size.y * size.z);
}

}  // namespace

extern "C" {

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments) {
  emu::make_context();
  emu::Launch launch{};
  launch.kernel = kernel;
  launch.arguments = arguments;
  launch.invoke = emu::next_invoke;
  launch.marker = emu::next_marker;
  launch.grid = config->gridDim;
  launch.block = config->blockDim;
  launch.dynamic_bytes = config->dynamicSmemBytes;
  launch.blocks = blocks_of_a_cluster(*config);
  launch.cluster_size = emu::cluster_size(*config);
  const size_t threads = size_t{launch.block.x} * launch.block.y * launch.block.z;
  if (threads == 0 || threads > 1024 || launch.grid.x == 0 || launch.grid.y == 0 || launch.grid.z == 0) {
    return cudaErrorInvalidConfiguration;
  }
  const dim3 size = launch.cluster_size;
  if (launch.grid.x % size.x != 0 || launch.grid.y % size.y != 0 || launch.grid.z % size.z != 0) {
    return cudaErrorInvalidConfiguration;
  }
  if (emu::is_dry()) return emu::note_launch(*config), cudaSuccess;
  emu::run(launch);
  emu::last_error = launch.cluster.message;
  return launch.cluster.failed ? cudaErrorLaunchFailure : cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t error) {
  static thread_local std::string text;
  text = error == cudaErrorLaunchFailure ? emu::last_error : "CUDA error " + std::to_string(error);
  return text.c_str();
}

cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t* config) {
  return *clusters = std::max(1, 2 * emu::multiprocessors() / blocks_of_a_cluster(*config)), cudaSuccess;
}
}
