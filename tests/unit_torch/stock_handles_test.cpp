#include "hooks/stock_handles.h"

#include <gtest/gtest.h>

#include <new>
#include <span>
#include <string>
#include <vector>

#include "allocator/error.h"
#include "hooks/adapter.h"
#include "tests/support/child_process.h"
#include "tests/unit/short_host_memory.h"
#include "tests/unit_torch/torch_support.h"

namespace limbo::testing {
namespace {

class StockHandles : public TorchTest {};

ErrorCode code_of_parsing(const std::string& bytes) {
  try {
    (void)parse_stock_handle(bytes);
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::kInternal;
}

TEST_F(StockHandles, TheFormatIsTheNativeOne) {
  void* first = adapter().raw_alloc(1000);
  void* second = adapter().raw_alloc(1000);
  const auto one = adapter().shareIpcHandle(first);
  const auto other = adapter().shareIpcHandle(second);
  const auto inside = adapter().shareIpcHandle(static_cast<char*>(second) + 100);
  ASSERT_EQ(one.handle.size(), 66U);
  EXPECT_EQ(one.handle[0], 2);
  EXPECT_EQ(one.handle[1], 'c');
  // One segment: the same bytes, other offsets.
  EXPECT_EQ(one.handle, other.handle);
  EXPECT_EQ(other.offset - one.offset, static_cast<char*>(second) - static_cast<char*>(first));
  EXPECT_EQ(inside.offset, other.offset + 100);
  EXPECT_EQ(inside.handle, other.handle);
  adapter().raw_delete(first);
  adapter().raw_delete(second);
  expect_starts_with(torch_error_of([&] { (void)adapter().shareIpcHandle(first); }),
                     "invalid device pointer: ");
}

TEST_F(StockHandles, WhatStockVersionsSendIsRead) {
  const std::string payload(64, 'x');
  const MemoryHandle expected = parse_stock_handle(payload);  // the form without a header
  EXPECT_EQ(expected.bytes[63], std::byte{'x'});
  for (const char version : {'\1', '\2', '\3'}) {
    EXPECT_EQ(parse_stock_handle(std::string{version, 'c'} + payload), expected);
  }
}

TEST_F(StockHandles, OtherBytesAreRefused) {
  const std::string payload(64, 'x');
  EXPECT_EQ(code_of_parsing(""), ErrorCode::kBadDescriptor);
  EXPECT_EQ(code_of_parsing("\2"), ErrorCode::kBadDescriptor);
  EXPECT_EQ(code_of_parsing("\2c"), ErrorCode::kBadDescriptor);
  EXPECT_EQ(code_of_parsing("\2c" + payload + "x"), ErrorCode::kBadDescriptor);
  EXPECT_EQ(code_of_parsing("\2z" + payload), ErrorCode::kBadDescriptor);
  EXPECT_EQ(code_of_parsing("\4c" + payload), ErrorCode::kBadDescriptor);
  EXPECT_EQ(code_of_parsing(std::string{'\0', 'c'} + payload), ErrorCode::kBadDescriptor);
  EXPECT_EQ(code_of_parsing("\2e" + payload), ErrorCode::kNotLendable);
}

TEST_F(StockHandles, ARefusedOpenLeavesNothing) {
  void* data = adapter().raw_alloc(1000);
  const auto handle = adapter().shareIpcHandle(data);
  StockMappings mappings;
  // The driver opens no memory in the process that made it.
  EXPECT_THROW((void)mappings.open(allocator_in_use().device(), handle.handle, 0), Error);
  EXPECT_EQ(mappings.size(), 0U);
  expect_starts_with(torch_error_of([&] { (void)adapter().getIpcDevPtr(handle.handle); }),
                     "limbo[device_error]: ");
  adapter().raw_delete(data);
}

// Opens the same handle twice, as two tensors of one segment do; reads through both.
LIMBO_CHILD_ROLE(open_stock_handle) {
  const std::vector<std::byte> bytes = child.receive_bytes();
  const auto offset = static_cast<std::ptrdiff_t>(std::stoll(child.receive()));
  const std::string handle(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  Device& device = allocator_in_use().device();
  StockMappings mappings;
  std::shared_ptr<void> first = mappings.open(device, handle, 0);
  std::shared_ptr<void> second = mappings.open(device, handle, 0);
  std::shared_ptr<void> copy = second;
  if (first.get() != second.get() || mappings.size() != 1) return 2;
  first.reset();
  copy.reset();
  if (mappings.size() != 1) return 3;
  std::vector<float> values(3);
  device.copy_to_host({}, values.data(), static_cast<char*>(second.get()) + offset,
                      values.size() * sizeof(float));
  if (values != std::vector<float>{0, 1, 2}) return 4;
  second.reset();
  if (mappings.size() != 0) return 5;
  // Opened anew after it was closed.
  std::shared_ptr<void> anew = mappings.open(device, handle, 0);
  anew.reset();
  if (mappings.size() != 0) return 6;
  child.send("done");
  return 0;
}

TEST_F(StockHandles, AnotherProcessReadsAndCloses) {
  const at::Tensor tensor = sim_arange(1000);
  const auto handle = adapter().shareIpcHandle(tensor.mutable_data_ptr());
  ChildProcess child("open_stock_handle");
  child.send_bytes(std::as_bytes(std::span(handle.handle)));
  child.send(std::to_string(handle.offset));
  child.expect("done");
  child.finish();
}

// Opens while host memory runs out, once for each allocation, where nothing is mapped yet and where it
// is mapped by another tensor; says what did not end as it should.
LIMBO_CHILD_ROLE(open_stock_handle_without_memory) {
  const std::vector<std::byte> bytes = child.receive_bytes();
  const std::string handle(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  auto& sim = dynamic_cast<SimDevice&>(allocator_in_use().device());
  RobustDevice device(sim);
  for (const bool mapped : {false, true}) {
    bool done = false;
    for (long n = 1; !done; ++n) {
      StockMappings mappings;
      std::shared_ptr<void> earlier;
      if (mapped) earlier = mappings.open(device, handle, 0);
      std::shared_ptr<void> opened;
      {
        const ShortHostMemory memory(n);
        try {
          opened = mappings.open(device, handle, 0);
        } catch (const std::bad_alloc&) {
        }
        done = !memory.failed();
      }
      const std::string where = std::to_string(n) + (mapped ? ", mapped" : "");
      if (done != (opened != nullptr)) child.send(where + ": failed without an error");
      if (mappings.size() != (mapped || done ? 1U : 0U)) child.send(where + ": counted wrongly");
      opened.reset();
      earlier.reset();
      if (mappings.size() != 0) child.send(where + ": stays mapped");
      if (sim.balance().opened != 0) child.send(where + ": is open in the driver");
    }
  }
  child.send("done");
  return 0;
}

TEST_F(StockHandles, HostMemoryThatRunsOutLeavesNothingMapped) {
  const at::Tensor tensor = sim_arange(1000);
  const auto handle = adapter().shareIpcHandle(tensor.mutable_data_ptr());
  ChildProcess child("open_stock_handle_without_memory");
  child.send_bytes(std::as_bytes(std::span(handle.handle)));
  child.expect("done");
  child.finish();
}

}  // namespace
}  // namespace limbo::testing
