#include "hooks/tensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "allocator/error.h"
#include "hooks/adapter.h"
#include "hooks/received_storage.h"
#include "tests/support/child_process.h"
#include "tests/support/eventually.h"
#include "tests/unit_torch/torch_support.h"

namespace limbo::testing {
namespace {

class Tensors : public TorchTest {
 protected:
  // What a test lent came back.
  void TearDown() override {
    if (HasFatalFailure()) return;
    EXPECT_EQ(received_storage_count(), 0U);
    EXPECT_TRUE(eventually([] {
      (void)sharing_in_use().collect();
      return sharing_in_use().stats().exports_open == 0 &&
             allocator_in_use().stats(0).limbo_blocks == 0;
    }));
    EXPECT_EQ(allocator_in_use().stats(0).allocation[0].current, 0);
    TorchTest::TearDown();
  }
};

template <typename Call>
ErrorCode code_of(Call&& call, std::string* text = nullptr) {
  try {
    std::forward<Call>(call)();
  } catch (const Error& error) {
    if (text != nullptr) *text = error.what();
    return error.code();
  }
  return ErrorCode::kInternal;
}

TEST_F(Tensors, WhatCannotBeLentSaysWhichAndWhatToDo) {
  std::string text;
  const auto refusal = [&](const at::Tensor& tensor) {
    EXPECT_FALSE(is_lendable(tensor));
    return code_of([&] { (void)share_tensor(tensor); }, &text);
  };
  EXPECT_EQ(refusal(at::zeros({3})), ErrorCode::kNotLendable);
  EXPECT_NE(text.find("12 bytes, on cpu"), std::string::npos) << text;
  EXPECT_NE(text.find("torch.multiprocessing"), std::string::npos) << text;

  EXPECT_EQ(refusal(at::Tensor()), ErrorCode::kNotLendable);

  float foreign[4] = {};
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), c10::SymInt(16),
      c10::DataPtr(foreign, c10::Device(c10::kCUDA, 0)), nullptr, false);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA),
      c10::scalarTypeToTypeMeta(at::kFloat));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({4});
  EXPECT_EQ(refusal(tensor), ErrorCode::kNotLendable);
  EXPECT_NE(text.find("\"native\""), std::string::npos) << text;
  EXPECT_NE(text.find("clone()"), std::string::npos) << text;
}

TEST_F(Tensors, ReceivedHereItIsTheBlockItself) {
  at::Tensor sent = sim_arange(12).view({3, 4});
  EXPECT_TRUE(is_lendable(sent));
  EXPECT_FALSE(is_received(sent));
  const at::Tensor view = sent.slice(0, 1, 3).select(1, 2);
  at::Tensor got = receive_tensor(share_tensor(view));
  EXPECT_TRUE(is_received(got));
  EXPECT_FALSE(is_orphaned(got));
  EXPECT_EQ(got.const_data_ptr(), view.const_data_ptr());
  EXPECT_EQ(got.sizes(), view.sizes());
  EXPECT_EQ(got.strides(), view.strides());
  EXPECT_EQ(got.storage_offset(), view.storage_offset());
  EXPECT_TRUE(sim_read(got).equal(sim_read(view)));
  // The memory outlives its owner's tensor, and comes back with the last reader.
  sent.reset();
  const_cast<at::Tensor&>(view).reset();
  EXPECT_EQ(sim_read(got)[1].item<float>(), 10);
  EXPECT_EQ(allocator_in_use().stats(0).limbo_blocks, 1);
}

TEST_F(Tensors, TwoMessagesOfOneStorageGiveOneStorage) {
  const at::Tensor sent = sim_arange(10);
  const at::Tensor first = receive_tensor(share_tensor(sent.slice(0, 0, 5)));
  const at::Tensor second = receive_tensor(share_tensor(sent.slice(0, 5, 10)));
  EXPECT_EQ(first.storage().unsafeGetStorageImpl(), second.storage().unsafeGetStorageImpl());
  EXPECT_EQ(received_storage_count(), 1U);
  const at::Tensor whole = receive_storage(share_tensor(sent));
  EXPECT_EQ(whole.storage().unsafeGetStorageImpl(), first.storage().unsafeGetStorageImpl());
  EXPECT_EQ(whole.scalar_type(), at::kByte);
  EXPECT_EQ(whole.numel(), 40);
}

TEST_F(Tensors, KindAndGradTravel) {
  at::Tensor sent = sim_arange(3);
  sent.set_requires_grad(true);
  ShareTensorOptions options;
  options.kind = 200;
  const Bytes message = share_tensor(sent, options);
  EXPECT_EQ(message_layout(message).kind, 200);
  const at::Tensor got = receive_tensor(message);
  EXPECT_TRUE(got.requires_grad());
  EXPECT_TRUE(got.is_leaf());
  std::string text;
  const at::Tensor not_leaf = sent.view({3, 1});
  EXPECT_EQ(code_of([&] { (void)share_tensor(not_leaf); }, &text), ErrorCode::kNotLendable);
  EXPECT_NE(text.find("detach()"), std::string::npos) << text;
}

TEST_F(Tensors, EmptyOnesNeedNoMemory) {
  const at::Tensor sent = sim_empty({0, 3}, at::kLong);
  const at::Tensor got = receive_tensor(share_tensor(sent));
  EXPECT_EQ(got.sizes(), sent.sizes());
  EXPECT_EQ(got.scalar_type(), at::kLong);
  EXPECT_TRUE(got.is_cuda());
  EXPECT_FALSE(is_lendable(sent));
  withdraw_message(share_tensor(sent));
  // Where it is to be is checked as for others.
  EXPECT_EQ(receive_tensor(share_tensor(sent), 0).device().index(), 0);
  EXPECT_EQ(code_of([&] { (void)receive_tensor(share_tensor(sent), 99); }),
            ErrorCode::kBadArgument);
  // A view without elements of a storage that has some.
  const at::Tensor some = sim_arange(4);
  EXPECT_EQ(receive_tensor(share_tensor(some.slice(0, 2, 2))).numel(), 0);
}

TEST_F(Tensors, AnAlteredMessageHoldsNothing) {
  const at::Tensor sent = sim_arange(4);
  const Bytes message = share_tensor(sent);
  for (std::size_t at = 0; at < message.size(); ++at) {
    Bytes altered = message;
    altered[at] ^= std::byte{1};
    EXPECT_EQ(code_of([&] { (void)receive_tensor(altered); }), ErrorCode::kBadDescriptor) << at;
  }
  EXPECT_EQ(code_of([] { (void)receive_tensor({}); }), ErrorCode::kBadDescriptor);
  EXPECT_EQ(received_storage_count(), 0U);
  (void)receive_tensor(message);
}

TEST_F(Tensors, AMessageWhoseTensorDoesNotFitIsRefused) {
  const at::Tensor sent = sim_arange(4);
  TensorLayout layout;
  layout.form = TensorForm::kTensor;
  layout.dtype = at::kFloat;
  layout.sizes = {5};
  layout.strides = {1};
  const Bytes message =
      sharing_in_use().share(sent.const_data_ptr(), 16, ShareOptions{}, encode_layout(layout));
  std::string text;
  EXPECT_EQ(code_of([&] { (void)receive_tensor(message); }, &text), ErrorCode::kBadDescriptor);
  EXPECT_NE(text.find("needs 20 bytes"), std::string::npos) << text;
  EXPECT_EQ(sharing_in_use().stats().in_flight, 0U);
}

TEST_F(Tensors, WithdrawnIsWithdrawn) {
  const at::Tensor sent = sim_arange(4);
  const Bytes message = share_tensor(sent);
  withdraw_message(message);
  EXPECT_EQ(code_of([&] { (void)receive_tensor(message); }), ErrorCode::kWithdrawn);
}

// ---- sizes that may not change ------------------------------------------------------------------

struct Shape {
  explicit Shape(const at::Tensor& tensor)
      : sizes(tensor.sizes().vec()),
        strides(tensor.strides().vec()),
        offset(tensor.storage_offset()),
        data(tensor.const_data_ptr()),
        storage_bytes(tensor.storage().nbytes()) {}
  friend bool operator==(const Shape&, const Shape&) = default;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t offset;
  const void* data;
  std::size_t storage_bytes;
};

TEST_F(Tensors, AReceivedStorageDoesNotGrow) {
  const at::Tensor sent = sim_arange(12).view({3, 4});
  at::Tensor got = receive_tensor(share_tensor(sent));
  const at::Tensor values = sim_read(got);
  at::Tensor view = got.slice(0, 1, 3);
  const auto refused = [&](at::Tensor& tensor, auto change) {
    const Shape before(tensor);
    const std::string text = torch_error_of([&] { change(tensor); });
    expect_starts_with(text, "limbo[not_resizable]: Trying to resize storage");
    EXPECT_NE(text.find("received from another process"), std::string::npos) << text;
    EXPECT_NE(text.find("clone()"), std::string::npos) << text;
    EXPECT_EQ(Shape(tensor), before);
  };
  refused(got, [](at::Tensor& tensor) { tensor.resize_({13}); });
  refused(got, [](at::Tensor& tensor) { tensor.resize_({1LL << 40, 1LL << 40}); });
  refused(got, [](at::Tensor& tensor) { tensor.resize_as_(at::empty({100})); });
  refused(view, [](at::Tensor& tensor) { tensor.resize_({9}); });  // 9 elements after its offset
  refused(view, [&](at::Tensor& tensor) { tensor.set_(got.storage(), 4, {3, 3}, {4, 1}); });
  refused(view, [&](at::Tensor& tensor) { tensor.set_(got.storage(), 13, {1}, {1}); });
  refused(view, [&](at::Tensor& tensor) { tensor.set_(got.storage(), 0, {2, 2}, {1LL << 62, 1}); });
  EXPECT_TRUE(sim_read(got).equal(values));

  view.resize_({8});
  EXPECT_EQ(view.numel(), 8);
  view.set_(got.storage(), 4, {2, 4}, {4, 1});
  EXPECT_TRUE(sim_read(view).equal(values.slice(0, 1, 3)));
  got.resize_({0});
  got.resize_({3, 4});
  EXPECT_TRUE(sim_read(got).equal(values));
  expect_starts_with(torch_error_of([&] { got.resize_({-1}); }), "limbo[bad_argument]: ");
}

TEST_F(Tensors, AReceivedTensorOfTheSameSizesDoesNotSpreadOut) {
  const at::Tensor sent = sim_arange(4);
  const at::Tensor got = receive_tensor(share_tensor(sent));
  at::Tensor view = got.view({1, 4, 1, 1}).expand({3, 4, 2, 2});  // 48 elements over 4
  const Shape before(view);
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    expect_starts_with(torch_error_of([&] {
                         view.resize_({3, 4, 2, 2}, format);
                       }),
                       "limbo[not_resizable]: ");
    EXPECT_EQ(Shape(view), before);
  }
  view.resize_({3, 4, 2, 2});  // without a format nothing changes
  EXPECT_EQ(Shape(view), before);
  at::Tensor fits = got.view({1, 2, 1, 2});
  fits.resize_({1, 2, 1, 2}, at::MemoryFormat::ChannelsLast);
  EXPECT_EQ(fits.strides(), at::IntArrayRef({4, 1, 4, 2}));
}

TEST_F(Tensors, NegativeStridesOverReceivedMemoryAreRefused) {
  const at::Tensor sent = sim_arange(4);
  const at::Tensor got = receive_tensor(share_tensor(sent));
  at::Tensor view = got.slice(0, 0, 2);
  const Shape before(view);
  expect_starts_with(torch_error_of([&] {
                       view.set_(got.storage(), 0, {4, 3}, {-1, 1});
                     }),
                     "limbo[bad_argument]: ");
  EXPECT_EQ(Shape(view), before);
  EXPECT_NE(torch_error_of([&] { view.set_(got.storage(), -1, {1}, {1}); }), "nothing was thrown");
  EXPECT_EQ(Shape(view), before);
}

// ---- between processes --------------------------------------------------------------------------

// Receives every message that the parent sends until it says "end"; answers what it met.
LIMBO_CHILD_ROLE(receive_tensors) {
  std::vector<at::Tensor> kept;
  for (std::string line = child.receive(); line != "end"; line = child.receive()) {
    if (line == "drop") {
      kept.clear();
      child.send(std::to_string(received_storage_count()));
      continue;
    }
    try {
      const at::Tensor tensor = receive_tensor(from_hex(line));
      kept.push_back(tensor);
      child.send(std::to_string(sim_read(tensor).sum().item<double>()));
    } catch (const Error& error) {
      child.send(error_code_name(error.code()));
    }
  }
  return 0;
}

TEST_F(Tensors, AnotherProcessReceivesReadsAndGivesBack) {
  at::Tensor sent = sim_arange(100);
  ChildProcess child("receive_tensors");
  child.send(to_hex(share_tensor(sent)));
  child.expect(std::to_string(4950.0));
  child.send(to_hex(share_tensor(sent.slice(0, 10, 13))));
  child.expect(std::to_string(33.0));
  sent.reset();
  (void)sharing_in_use().collect();
  EXPECT_EQ(allocator_in_use().stats(0).limbo_blocks, 1);
  child.send("drop");
  child.expect("0");
  child.send("end");
  child.finish();
}

TEST_F(Tensors, AKilledReaderGivesBackToo) {
  at::Tensor sent = sim_arange(100);
  ChildProcess child("receive_tensors");
  child.send(to_hex(share_tensor(sent)));
  child.expect(std::to_string(4950.0));
  sent.reset();
  child.kill();
}

LIMBO_CHILD_ROLE(share_and_stay) {
  const at::Tensor tensor = sim_arange(10);
  child.send(to_hex(share_tensor(tensor)));
  child.park();
  return 0;
}

// A tensor and a view of it are sent on by whoever has received it, as long as its owner lives.
TEST_F(Tensors, WhatWasReceivedIsSentOn) {
  (void)sharing_in_use().incarnation();
  ChildProcess child("share_and_stay");
  at::Tensor got = receive_tensor(child.receive_bytes());
  EXPECT_TRUE(is_received(got));
  EXPECT_TRUE(is_lendable(got));
  EXPECT_EQ(sim_read(got).sum().item<float>(), 45);
  for (const at::Tensor& sent_on : {got, got.slice(0, 0, 10)}) {
    ChildProcess third("receive_tensors");
    third.send(to_hex(share_tensor(sent_on)));
    third.expect(std::to_string(45.0));
    third.kill();
  }
  EXPECT_FALSE(is_orphaned(got));
  child.kill();
  std::string text;
  EXPECT_EQ(code_of([&] { (void)share_tensor(got); }, &text), ErrorCode::kProducerExited);
  EXPECT_NE(text.find("clone()"), std::string::npos) << text;
  EXPECT_TRUE(eventually([&] { return is_orphaned(got); }));
  EXPECT_EQ(sim_read(got).sum().item<float>(), 45);  // stays readable
}

}  // namespace
}  // namespace limbo::testing
