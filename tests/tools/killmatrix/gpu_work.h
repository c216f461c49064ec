// What a process of the kill matrix does on its streams: write canaries, be slow, compare.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "allocator/device/device.h"
#include "tests/support/test_kernels.h"

namespace limbo::killmatrix {

// One thread uses it.
class GpuWork {
 public:
  static constexpr std::size_t kStreams = 4;  // the default stream is the first
  static constexpr std::size_t kBytesLookedAt = 65'536;

  explicit GpuWork(Device& device);

  [[nodiscard]] StreamHandle stream(std::size_t index) const { return streams_.at(index); }
  [[nodiscard]] static StreamRef ref(StreamHandle stream) noexcept { return {0, stream}; }

  // What `later` does from now on comes behind what `earlier` has queued.
  void order(StreamHandle earlier, StreamHandle later);

  void fill(StreamHandle stream, void* data, std::size_t size_bytes, std::uint32_t canary);
  // A kernel that takes its time and touches no block.
  void delay(StreamHandle stream, std::chrono::milliseconds duration);
  // A kernel that writes the canary again and again.
  void write_for(StreamHandle stream, void* data, std::size_t size_bytes, std::uint32_t canary,
                 std::chrono::milliseconds duration);

  // Waits for the stream. The first word of the first kBytesLookedAt bytes that is not the canary.
  [[nodiscard]] std::optional<std::uint32_t> foreign_word(StreamHandle stream, const void* data,
                                                          std::size_t size_bytes,
                                                          std::uint32_t canary);

  // ---- the simulated device only ---------------------------------------------------------------

  [[nodiscard]] bool is_simulated() const noexcept { return scratch_ == nullptr; }
  // Calls `during` while a stream is being captured; the graph is launched so often, and goes.
  void capture(StreamHandle stream, int launches, const std::function<void()>& during);
  [[nodiscard]] StreamHandle new_stream() { return device_.create_stream(0); }
  // Waits for it.
  void destroy_stream(StreamHandle stream);
  // From now on every call of the device fails.
  void lose_context();

 private:
  testing::TestKernels& kernels();

  Device& device_;
  std::array<StreamHandle, kStreams> streams_{};
  EventHandle event_ = nullptr;
  void* scratch_ = nullptr;
  std::unique_ptr<testing::TestKernels> kernels_;
  std::vector<std::uint32_t> words_;
};

}  // namespace limbo::killmatrix
