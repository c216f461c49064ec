#include <vector>

#include "allocator/allocator.h"
#include "allocator/device/device.h"
#include "tests/tools/replay/backend.h"

namespace limbo::replay {
namespace {

class LimboBackend final : public Backend {
 public:
  explicit LimboBackend(Device& device) : device_(device) {}

  void start(std::size_t limit_bytes) override {
    allocator_.reset();  // the old one's memory goes back before the new one takes any
    allocator_ = std::make_unique<Allocator>(device_);
    allocator_->set_limit_bytes(0, limit_bytes);
  }

  void* stream(std::size_t index) override {
    if (streams_.empty()) streams_.push_back(nullptr);
    while (streams_.size() <= index) streams_.push_back(device_.create_stream(0));
    return streams_[index];
  }

  bool allocate(std::size_t size_bytes, void* stream, void** block) override {
    try {
      *block = allocator_->allocate(size_bytes, {0, stream});
      return true;
    } catch (const OutOfMemory&) {
      return false;
    }
  }

  void free(void* block) override { allocator_->free(block); }

  std::size_t peak_reserved_bytes() override {
    constexpr auto kAll = static_cast<std::size_t>(SizeKind::kAll);
    return static_cast<std::size_t>(allocator_->stats(0).reserved_bytes[kAll].peak);
  }

 private:
  Device& device_;
  std::unique_ptr<Allocator> allocator_;
  std::vector<StreamHandle> streams_;
};

}  // namespace

std::unique_ptr<Backend> make_limbo_backend() {
  return std::make_unique<LimboBackend>(process_device());
}

}  // namespace limbo::replay
