#include "hooks/received_storage.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "hooks/adapter.h"
#include "tests/unit_torch/torch_support.h"

namespace limbo::testing {
namespace {

// What the claims of one test did.
struct Log {
  std::atomic<int> made{0};
  std::atomic<int> ended{0};
  std::atomic<int> recorded{0};
};

// A claim on memory of the test's own: what a storage does with it is what is tested.
class LoggedBlock final : public ReceivedBlock {
 public:
  LoggedBlock(Log& log, void* data, std::size_t size_bytes, std::uint32_t piece = 1)
      : log_(log), data_(data) {
    key_.producer = {1, 2};
    key_.piece_index = piece;
    key_.size_bytes = size_bytes;
    ++log_.made;
  }
  ~LoggedBlock() override { release(); }

  void* data() const noexcept override { return data_; }
  std::size_t size_bytes() const noexcept override {
    return static_cast<std::size_t>(key_.size_bytes);
  }
  int device() const noexcept override { return 0; }
  const ReceivedKey& key() const noexcept override { return key_; }
  bool same_process() const noexcept override { return false; }
  bool orphaned() const override { return lost_; }
  void came_also_by(const ReceivedBlock& other) override { lost_ = lost_ || other.orphaned(); }
  void lose() noexcept { lost_ = true; }
  void record_stream(StreamRef /*stream*/) override { ++log_.recorded; }
  void release() noexcept override {
    if (!released_) ++log_.ended;
    released_ = true;
  }

 private:
  Log& log_;
  void* data_;
  ReceivedKey key_;
  bool released_ = false;
  bool lost_ = false;
};

class ReceivedStorage : public TorchTest {
 protected:
  void TearDown() override {
    EXPECT_EQ(log_.made.load(), log_.ended.load());
    EXPECT_EQ(received_storage_count(), 0U);
    TorchTest::TearDown();
  }
  std::unique_ptr<ReceivedBlock> block(std::size_t at = 0, std::size_t size_bytes = 256,
                                       std::uint32_t piece = 1) {
    return std::make_unique<LoggedBlock>(log_, memory_ + at, size_bytes, piece);
  }

  Log log_;
  char memory_[1024] = {};
  StreamRef stream_;
};

TEST_F(ReceivedStorage, CannotGrowAndIsMarked) {
  const auto storage = storage_of(block(), stream_);
  EXPECT_FALSE(storage->resizable());
  EXPECT_TRUE(storage->received_cuda());
  EXPECT_EQ(storage->allocator(), nullptr);
  EXPECT_EQ(storage->nbytes(), 256U);
  EXPECT_EQ(storage->data(), memory_);
  EXPECT_EQ(storage->device_type(), c10::DeviceType::CUDA);
  EXPECT_NE(received_block(storage->data_ptr()), nullptr);
  EXPECT_EQ(received_block(c10::DataPtr(memory_, c10::Device(c10::kCUDA, 0))), nullptr);
}

TEST_F(ReceivedStorage, TwoMessagesOfOneStorageShareIt) {
  auto first = storage_of(block(), stream_);
  EXPECT_EQ(log_.recorded.load(), 0);
  const auto second = storage_of(block(), stream_);
  EXPECT_EQ(first.get(), second.get());
  EXPECT_EQ(log_.recorded.load(), 1);  // the second message's stream, on the living claim
  EXPECT_EQ(log_.ended.load(), 1);     // the second message's claim
  EXPECT_NE(storage_of(block(0, 128), stream_).get(), first.get());
  EXPECT_NE(storage_of(block(0, 256, 2), stream_).get(), first.get());
}

// What a second message promised and does not keep is seen at the storage that the first one made.
TEST_F(ReceivedStorage, ASecondMessageSpeaksForTheSharedStorageToo) {
  const auto first = storage_of(block(), stream_);
  const auto orphaned = [&] { return received_block(first->data_ptr())->orphaned(); };
  (void)storage_of(block(), stream_);
  EXPECT_FALSE(orphaned());
  auto second = std::make_unique<LoggedBlock>(log_, memory_, 256);
  second->lose();
  (void)storage_of(std::move(second), stream_);
  EXPECT_TRUE(orphaned());
}

TEST_F(ReceivedStorage, ADeadOneIsNotFoundAgain) {
  (void)storage_of(block(), stream_);
  EXPECT_EQ(log_.ended.load(), 1);
  EXPECT_EQ(received_storage_count(), 0U);
  const auto again = storage_of(block(), stream_);
  EXPECT_EQ(again.use_count(), 1U);
  EXPECT_EQ(log_.ended.load(), 1);
}

TEST_F(ReceivedStorage, UsesAreRecordedByClaimAndByAddress) {
  const auto storage = storage_of(block(0, 256), stream_);
  const auto overlapping = storage_of(block(128, 256, 2), stream_);
  EXPECT_TRUE(record_received(storage->data_ptr(), stream_));
  EXPECT_EQ(log_.recorded.load(), 1);
  const auto record_at = [&](std::size_t at) {
    log_.recorded = 0;
    const c10::DataPtr alias(memory_ + at, c10::Device(c10::kCUDA, 0));
    const bool found = record_received(alias, stream_);
    EXPECT_EQ(found, log_.recorded.load() != 0);
    return log_.recorded.load();
  };
  EXPECT_EQ(record_at(0), 1);
  EXPECT_EQ(record_at(127), 1);
  EXPECT_EQ(record_at(128), 2);
  EXPECT_EQ(record_at(255), 2);
  EXPECT_EQ(record_at(256), 1);
  EXPECT_EQ(record_at(384), 0);
}

TEST_F(ReceivedStorage, RecordStreamOfATensorReachesTheClaimUnderAnyAllocator) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage_of(block(), stream_)), c10::DispatchKeySet(c10::DispatchKey::CUDA),
      c10::scalarTypeToTypeMeta(at::kFloat));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({64});
  ASSERT_EQ(c10::cuda::CUDACachingAllocator::name(), "native");
  tensor.record_stream(c10::Stream(c10::Stream::UNSAFE, tensor.device(), 0));
  tensor.slice(0, 3, 5).record_stream(c10::Stream(c10::Stream::UNSAFE, tensor.device(), 0));
  EXPECT_EQ(log_.recorded.load(), 2);
}

// Threads that receive one storage, keep it for a moment and drop it: whoever lives is shared, and
// every claim ends once.
TEST_F(ReceivedStorage, ReceivedAndDroppedByManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 5'000;
  std::atomic<bool> go{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      while (!go) std::this_thread::yield();
      for (int round = 0; round < kRounds; ++round) {
        auto first = storage_of(block(), stream_);
        const auto second = storage_of(block(), stream_);
        EXPECT_EQ(first.get(), second.get());  // it lives, so it is the one
        EXPECT_EQ(first->data(), memory_);
        if (round % 3 == 0) first.reset();
      }
    });
  }
  go = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(log_.made.load(), 2 * kThreads * kRounds);
}

}  // namespace
}  // namespace limbo::testing
