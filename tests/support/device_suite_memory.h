// The device suite: memory, and memory of other processes.
#pragma once

#include "tests/support/device_suite_child.h"

namespace limbo::testing {

TEST_P(DeviceSuite, TellsWhatItIs) {
  EXPECT_EQ(device().name(), GetParam());
  ASSERT_GE(device().device_count(), 1);
  EXPECT_TRUE(device().has_stream_memory_operations(0));
  EXPECT_EQ(device().uuid(0), device().uuid(0));
  EXPECT_NE(device().uuid(0), Uuid{});
  for (int i = 1; i < device().device_count(); ++i) {
    EXPECT_NE(device().uuid(i), device().uuid(0)) << "device " << i;
  }
}

TEST_P(DeviceSuite, AllocatesAlignedMemory) {
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{512}, 3 * kMiB / 2, 2 * kMiB, 20 * kMiB}) {
    const auto address = reinterpret_cast<std::uintptr_t>(new_memory(size));
    EXPECT_EQ(address % 512, 0U) << size;
    if (size % (2 * kMiB) == 0) {
      EXPECT_EQ(address % (2 * kMiB), 0U) << size;
    }
  }
}

TEST_P(DeviceSuite, CountsWhatIsTaken) {
  // A driver takes something for itself at the first allocation of a size.
  give_up(new_memory(64 * kMiB));
  const MemoryInfo before = device().memory_info(0);
  EXPECT_GT(before.total_bytes, 0U);
  EXPECT_LE(before.free_bytes, before.total_bytes);
  void* memory = new_memory(64 * kMiB);
  EXPECT_LE(device().memory_info(0).free_bytes, before.free_bytes - 64 * kMiB);
  give_up(memory);
  EXPECT_GE(device().memory_info(0).free_bytes, before.free_bytes);
}

TEST_P(DeviceSuite, ReturnsNullWithoutRoom) {
  const std::size_t total = device().memory_info(0).total_bytes;
  EXPECT_EQ(device().try_allocate(0, total / (2 * kMiB) * (2 * kMiB) + 2 * kMiB), nullptr);
  // And it works as before.
  std::uint32_t* memory = new_memory(2 * kMiB);
  device().fill(default_stream(), memory, 7, 16);
  EXPECT_EQ(read(memory, 16), std::vector<std::uint32_t>(16, 7));
}

TEST_P(DeviceSuite, RefusesWhatDoesNotExist) {
  const int beyond = device().device_count();
  EXPECT_EQ(error_of([&] { (void)device().try_allocate(0, 0); }), ErrorCode::kDeviceError);
  EXPECT_EQ(error_of([&] { (void)device().try_allocate(-1, 512); }), ErrorCode::kDeviceError);
  EXPECT_EQ(error_of([&] { (void)device().try_allocate(beyond, 512); }), ErrorCode::kDeviceError);
  EXPECT_EQ(error_of([&] { (void)device().memory_info(beyond); }), ErrorCode::kDeviceError);
  EXPECT_EQ(error_of([&] { (void)device().uuid(beyond); }), ErrorCode::kDeviceError);
  EXPECT_EQ(error_of([&] { (void)device().create_stream(beyond); }), ErrorCode::kDeviceError);
}

TEST_P(DeviceSuite, CopiesAndFills) {
  std::uint32_t* from = new_memory(2 * kMiB);
  std::uint32_t* to = new_memory(2 * kMiB);
  std::vector<std::uint32_t> words(1000);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = static_cast<std::uint32_t>(i * i);
  write(from, words);
  device().fill(default_stream(), to, 0xabcd1234, words.size() + 1);
  device().copy(default_stream(), to, from, words.size() * 4);
  const std::vector<std::uint32_t> result = read(to, words.size() + 1);
  EXPECT_EQ(std::vector<std::uint32_t>(result.begin(), result.end() - 1), words);
  EXPECT_EQ(result.back(), 0xabcd1234U);
}

TEST_P(DeviceSuite, KernelsWriteAndCount) {
  const StreamRef stream = new_stream();
  std::uint32_t* memory = new_memory(2 * kMiB);
  const auto start = std::chrono::steady_clock::now();
  kernels().write_for(stream, memory, 5, 1000, std::chrono::milliseconds(30));
  EXPECT_EQ(kernels().count_different(stream, memory, 5, 1000), 0U);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(29));
  EXPECT_EQ(kernels().count_different(stream, memory, 6, 1000), 1000U);
  device().fill(stream, memory + 10, 6, 3);
  EXPECT_EQ(kernels().count_different(stream, memory, 5, 1000), 3U);
}

TEST_P(DeviceSuite, HandlesNameOnePieceEach) {
  void* first = new_memory(2 * kMiB);
  void* second = new_memory(2 * kMiB);
  const MemoryHandle handle = device().export_memory(0, first);
  EXPECT_EQ(handle, device().export_memory(0, first));
  EXPECT_NE(handle, device().export_memory(0, second));
  give_up(first);
  // Often at the same address; never under the same name.
  EXPECT_NE(handle, device().export_memory(0, new_memory(2 * kMiB)));
}

TEST_P(DeviceSuite, TellsTheAllocationOfAnAddress) {
  std::uint32_t* first = new_memory(2 * kMiB);
  std::uint32_t* second = new_memory(6 * kMiB);
  EXPECT_EQ(device().driver_allocation(0, first), (DriverAllocation{first, 2 * kMiB}));
  EXPECT_EQ(device().driver_allocation(0, second + kMiB), (DriverAllocation{second, 6 * kMiB}));
  int elsewhere = 0;
  EXPECT_EQ(error_of([&] { (void)device().driver_allocation(0, &elsewhere); }),
            ErrorCode::kDeviceError);
  EXPECT_EQ(read(first, 1).size(), 1U);
}

TEST_P(DeviceSuite, IsNotOpenedWhereItWasMade) {
  std::uint32_t* memory = new_memory(2 * kMiB);
  const MemoryHandle handle = device().export_memory(0, memory);
  EXPECT_EQ(error_of([&] { (void)device().open_memory(0, handle); }), ErrorCode::kDeviceError);
  device().fill(default_stream(), memory, 3, 4);
  EXPECT_EQ(read(memory, 1)[0], 3U);
}

TEST_P(DeviceSuite, RefusesBytesThatAreNoHandle) {
  MemoryHandle handle;
  handle.bytes.fill(std::byte{0x5a});
  EXPECT_EQ(error_of([&] { (void)device().open_memory(0, handle); }), ErrorCode::kDeviceError);
  EXPECT_EQ(read(new_memory(512), 1).size(), 1U);
}

TEST_P(DeviceSuite, AnotherProcessReadsAndWrites) {
  std::uint32_t* memory = new_memory(2 * kMiB);
  device().fill(default_stream(), memory, 11, 1000);
  device().synchronize_device(0);
  const std::string handle = handle_text(device().export_memory(0, memory));
  ChildProcess child = new_child();
  const std::string address = ask(child, "open " + handle);
  EXPECT_EQ(ask(child, "count " + address + " 11 1000"), "0");
  EXPECT_EQ(ask(child, "fill " + address + " 12 500"), "done");
  EXPECT_EQ(kernels().count_different(default_stream(), memory, 12, 500), 0U);
  EXPECT_EQ(kernels().count_different(default_stream(), memory + 500, 11, 500), 0U);
  EXPECT_EQ(ask(child, "close " + address), "done");
  child.close_input();
  child.finish();
}

TEST_P(DeviceSuite, OpensAreCounted) {
  std::uint32_t* memory = new_memory(2 * kMiB);
  device().fill(default_stream(), memory, 21, 16);
  device().synchronize_device(0);
  const std::string handle = handle_text(device().export_memory(0, memory));
  ChildProcess child = new_child();
  const std::string address = ask(child, "open " + handle);
  EXPECT_EQ(ask(child, "open " + handle), address);
  EXPECT_EQ(ask(child, "close " + address), "done");
  EXPECT_EQ(ask(child, "read " + address + " 3"), "21");
  EXPECT_EQ(ask(child, "close " + address), "done");
  EXPECT_EQ(ask(child, "close " + address), "error device_error");
  EXPECT_EQ(ask(child, "open " + handle).substr(0, 5) == "error", false);
}

TEST_P(DeviceSuite, MappedMemoryOutlivesItsOwner) {
  ChildProcess owner = new_child();
  const std::string text = ask(owner, "allocate 2097152 31");
  MemoryHandle handle;
  const std::vector<std::byte> bytes = from_hex(text);
  ASSERT_EQ(bytes.size(), handle.bytes.size()) << text;
  std::copy(bytes.begin(), bytes.end(), handle.bytes.begin());
  auto* memory = static_cast<std::uint32_t*>(device().open_memory(0, handle));
  EXPECT_EQ(read(memory, 1)[0], 31U);
  owner.kill();
  EXPECT_EQ(kernels().count_different(default_stream(), memory, 31, 2097152 / 4), 0U);
  // Opening once more works where a mapping is; a first opening would not (next test).
  EXPECT_EQ(device().open_memory(0, handle), memory);
  device().close_memory(0, memory);
  device().close_memory(0, memory);
}

TEST_P(DeviceSuite, IsNotOpenedFirstAfterItsOwnersDeath) {
  MemoryHandle handle;
  {
    ChildProcess owner = new_child();
    const std::vector<std::byte> bytes = from_hex(ask(owner, "allocate 2097152 41"));
    ASSERT_EQ(bytes.size(), handle.bytes.size());
    std::copy(bytes.begin(), bytes.end(), handle.bytes.begin());
    owner.kill();
  }
  // The simulated device learns of a death a moment after its parent.
  const auto refused = [&] {
    return error_of([&] { device().close_memory(0, device().open_memory(0, handle)); }) ==
           ErrorCode::kDeviceError;
  };
  EXPECT_TRUE(eventually(refused));
}

TEST_P(DeviceSuite, FreedMemoryStaysWhileAnotherMapsIt) {
  std::uint32_t* memory = new_memory(64 * kMiB);
  device().fill(default_stream(), memory, 51, 64 * kMiB / 4);
  device().synchronize_device(0);
  ChildProcess child = new_child();
  const std::string address = ask(child, "open " + handle_text(device().export_memory(0, memory)));
  const std::size_t mapped = device().memory_info(0).free_bytes;
  give_up(memory);
  EXPECT_LT(device().memory_info(0).free_bytes, mapped + 64 * kMiB);
  EXPECT_EQ(ask(child, "count " + address + " 51 16777216"), "0");
  EXPECT_EQ(ask(child, "close " + address), "done");
  EXPECT_TRUE(eventually([&] { return device().memory_info(0).free_bytes >= mapped + 64 * kMiB; }));
}

TEST_P(DeviceSuite, ADeadReadersMemoryComesBack) {
  std::uint32_t* memory = new_memory(64 * kMiB);
  ChildProcess child = new_child();
  const std::string address = ask(child, "open " + handle_text(device().export_memory(0, memory)));
  ASSERT_NE(address.substr(0, 5), "error");
  const std::size_t mapped = device().memory_info(0).free_bytes;
  give_up(memory);
  child.kill();
  EXPECT_TRUE(eventually([&] { return device().memory_info(0).free_bytes >= mapped + 64 * kMiB; }));
}

}  // namespace limbo::testing
