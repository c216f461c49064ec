#include "hooks/install.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <pthread.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "hooks/adapter.h"
#include "hooks/preconditions.h"
#include "hooks/settings.h"
#include "hooks/stock_loading.h"

namespace limbo {
namespace {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;

// torch's own allocator registers itself with 1; equal or higher replaces.
constexpr std::uint8_t kAllocatorPriority = 2;

std::atomic<bool> complete{false};

struct Locks {
  // Guards the change of torch's pointers, and `previous`. What is called under it: torch's own
  // functions for that change, which call nothing back. Recursive calls do not occur. Nobody waits
  // with it for a thread that makes an allocator object: that may need the GIL.
  std::mutex change;
  std::mutex completion;  // guards the steps of complete_installation, which call nothing back
};
Locks& locks() {
  static auto* made = new Locks;
  return *made;
}
// torch's two pointers to an allocator: the one that everybody goes by, and the one of plug-ins, which
// owns its plug-in, and by which that one's tensors are freed.
struct Allocators {
  torch_cuda::CUDAAllocator* current = nullptr;
  std::shared_ptr<torch_cuda::CUDAAllocator> plug_in;
};
Allocators& previous() {
  static auto* made = new Allocators;
  return *made;
}
// The adapter stands in torch's place only to be handed to Python.
std::atomic<bool> making{false};
// Who is between begin_ and end_making_allocator; nobody: the default. Changed under the lock.
std::atomic<std::thread::id> maker{};

torch_cuda::CUDAAllocator* current() {
  return torch_cuda::allocator.load();
}

// Makes `plug_in` torch's allocator, and the object that Python gets. torch refuses where the
// allocator in place is initialised; by then that is the adapter, which says no for the moment.
void change_by_way_of_adapter(const std::shared_ptr<torch_cuda::CUDAAllocator>& plug_in) {
  adapter().hide_initialization(true);
  torch_cuda::allocator.store(&adapter());
  try {
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(plug_in);
  } catch (...) {
    adapter().hide_initialization(false);
    throw;
  }
  adapter().hide_initialization(false);
}

void put_back() {
  maker.store(std::thread::id{});
  const Allocators before = std::exchange(previous(), {});
  if (before.plug_in != nullptr) change_by_way_of_adapter(before.plug_in);
  torch_cuda::allocator.store(before.current);
  making.store(false);
}

[[noreturn]] void throw_making() {
  throw Error(ErrorCode::kBadArgument, "This thread is making an allocator object already.",
              "Call limbo_torch_restore_allocator first.");
}

// The right to change torch's pointer: nobody makes an allocator object.
std::unique_lock<std::mutex> lock_for_change() {
  while (true) {
    std::unique_lock lock(locks().change);
    const std::thread::id other = maker.load();
    if (other == std::thread::id{}) return lock;
    if (other == std::this_thread::get_id()) throw_making();
    lock.unlock();
    maker.wait(other);
  }
}

// So that the child's copies of the locks are free. What another thread was making ends there: it has
// no such thread.
void before_fork() noexcept {
  locks().change.lock();
  locks().completion.lock();
}
void after_fork() noexcept {
  locks().completion.unlock();
  locks().change.unlock();
}
void in_child() noexcept {
  const std::thread::id known = maker.load();
  if (known != std::thread::id{} && known != std::this_thread::get_id()) put_back();
  after_fork();
}

struct AtLoad {
  AtLoad() noexcept {
    (void)locks();
    ::pthread_atfork(before_fork, after_fork, in_child);
  }
};
AtLoad at_load;

// torch is about to let go of its plug-in, and to free that one's tensors through the adapter, which
// hands them on: so it stays, whoever else lets go of it.
void keep_for_its_tensors(const std::shared_ptr<torch_cuda::CUDAAllocator>& plug_in) {
  if (plug_in == nullptr || plug_in.get() == &adapter()) return;
  static auto* kept = new std::vector<std::shared_ptr<torch_cuda::CUDAAllocator>>;
  if (std::find(kept->begin(), kept->end(), plug_in) == kept->end()) kept->push_back(plug_in);
  adapter().note_plug_in(plug_in.get());
}

// Of torch's wrapper around limbo_malloc. torch keeps it: what it has handed out is freed through it.
// Whether it was initialised (those that Python makes are so from the start).
bool take_place_of_wrapper(torch_cuda::CUDAAllocator& wrapper) {
  torch_cuda::allocator.store(&adapter());
  return wrapper.initialized();
}

}  // namespace

bool installed() noexcept {
  return !making.load() && current() == &adapter();
}

bool installation_complete() noexcept {
  return complete.load(std::memory_order_relaxed);
}

void complete_installation() {
  if (installation_complete() || !installed()) return;
  {
    const std::lock_guard lock(locks().completion);
    if (installation_complete()) return;
    // So that torch.accelerator and c10::GetAllocator agree with torch.cuda.
    c10::SetAllocator(c10::DeviceType::CUDA, &adapter(), kAllocatorPriority);
    complete.store(true, std::memory_order_relaxed);
  }
  warn_about_settings();
}

void install() {
  require_usable();
  if (!installed()) require_settings_allow();
  bool was_initialized = false;
  {
    const auto lock = lock_for_change();
    if (!installed()) {
      torch_cuda::CUDAAllocator* before = current();
      if (is_limbo(*before)) {
        was_initialized = take_place_of_wrapper(*before);
      } else {
        require_unused(*before);
        // torch owns it only by this pointer, if it is not torch's own.
        keep_for_its_tensors(torch::cuda::CUDAPluggableAllocator::getCurrentAllocator());
        was_initialized = before->initialized();
        change_by_way_of_adapter(shared_adapter());
        if (was_initialized) adapter().note_replaced(before);
      }
    }
  }
  if (was_initialized) adapter().take_over_initialization();
  complete_installation();
}

void replace_pluggable_wrapper() {
  // Where Limbo only backs a plug-in, or a pool, it comes here at every allocation: what takes
  // microseconds is looked at at the first, and where the step is to be made.
  static std::atomic<bool> allowed{false};
  if (allowed.load(std::memory_order_relaxed) && !is_wrapper_of_limbo(current())) return;
  require_usable();
  require_settings_allow();
  allowed.store(true, std::memory_order_relaxed);
  bool was_initialized = false;
  {
    // An allocation is on its way, perhaps with the GIL or a foreign lock held: where somebody
    // changes torch's pointer just now, a later one does this.
    const std::unique_lock lock(locks().change, std::try_to_lock);
    if (!lock.owns_lock() || maker.load() != std::thread::id{}) return;
    torch_cuda::CUDAAllocator* before = current();
    if (!is_wrapper_of_limbo(before)) return;
    was_initialized = take_place_of_wrapper(*before);
  }
  if (was_initialized) adapter().take_over_initialization();
  complete_installation();
}

void begin_making_allocator() {
  require_usable();
  require_settings_allow();
  const auto lock = lock_for_change();
  Allocators before{current(), torch::cuda::CUDAPluggableAllocator::getCurrentAllocator()};
  keep_for_its_tensors(before.plug_in);
  making.store(before.current != &adapter());
  previous() = std::move(before);
  maker.store(std::this_thread::get_id());
  try {
    change_by_way_of_adapter(shared_adapter());
  } catch (...) {
    put_back();
    maker.notify_all();
    throw;
  }
}

void end_making_allocator() {
  const std::lock_guard lock(locks().change);
  if (maker.load() != std::this_thread::get_id()) {
    throw Error(ErrorCode::kBadArgument, "This thread is not making an allocator object.",
                "Call limbo_torch_make_allocator first, in the same thread.");
  }
  put_back();
  maker.notify_all();
}

}  // namespace limbo
