#include "hooks/stock_handles.h"

#include <cstdio>
#include <cstring>

#include "allocator/address_text.h"
#include "hooks/error_text.h"
#include "hooks/process.h"

namespace limbo {
namespace {

constexpr std::size_t kRuntimeHandleBytes = 64;
constexpr std::size_t kHeaderBytes = 2;
constexpr char kExpandableKind = 'e';

[[noreturn]] void throw_bad_handle(const std::string& happened) {
  throw Error(ErrorCode::kBadDescriptor, happened,
              "Send a handle that _share_cuda_ of torch 2.5 or later has made.");
}

[[noreturn]] void throw_cannot_be_opened(const void* data, const std::string& why) {
  throw Error(ErrorCode::kNotLendable,
              "The memory at " + address_text(data) +
                  " is a private pool's, and other processes cannot open it: " + why,
              "Copy it with clone(), outside of the pool, and send the copy.");
}

}  // namespace

DriverAllocation driver_allocation_of(Device& device, const BlockView& block) {
  if (block.pool.is_default()) return {block.piece_base, block.piece_size_bytes};
  try {
    const DriverAllocation whole = device.driver_allocation(block.stream.device, block.data);
    const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(block.data) -
                                                 static_cast<const std::byte*>(whole.base));
    if (block.size_bytes <= whole.size_bytes - offset) return whole;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDeviceError) throw;
    throw_cannot_be_opened(block.data, error.what());
  }
  throw_cannot_be_opened(block.data, "the driver gave it in several parts.");
}

c10::cuda::CUDACachingAllocator::ShareableHandle make_stock_handle(Device& device,
                                                                   const BlockView& block,
                                                                   const void* data) {
  const DriverAllocation whole = driver_allocation_of(device, block);
  MemoryHandle handle;
  try {
    handle = device.export_memory(block.stream.device, whole.base);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDeviceError || block.pool.is_default()) throw;
    throw_cannot_be_opened(data, error.what());
  }
  if (handle.kind != HandleKind::kRuntimeIpc) {
    throw Error(ErrorCode::kNotLendable,
                "The memory at " + address_text(data) + " has no runtime IPC handle.",
                "Send it as Limbo's message, by torch.multiprocessing or torch_limbo.share.");
  }
  std::string bytes;
  bytes.reserve(kHeaderBytes + kRuntimeHandleBytes);
  bytes += static_cast<char>(kStockHandleVersion);
  bytes += kStockHandleKind;
  bytes.append(reinterpret_cast<const char*>(handle.bytes.data()), handle.bytes.size());
  return {static_cast<const char*>(data) - static_cast<const char*>(whole.base), std::move(bytes)};
}

MemoryHandle parse_stock_handle(std::string_view bytes) {
  if (bytes.size() != kRuntimeHandleBytes) {  // else the form before there was a header
    if (bytes.size() < kHeaderBytes) {
      throw_bad_handle("A stock memory handle has " + std::to_string(bytes.size()) + " bytes.");
    }
    const auto version = static_cast<unsigned char>(bytes[0]);
    if (version == 0 || version > kNewestStockHandleVersion) {
      throw_bad_handle("A stock memory handle has version " + std::to_string(version) + ".");
    }
    if (bytes[1] == kExpandableKind) {
      throw Error(ErrorCode::kNotLendable,
                  "The sender's memory lies in an expandable segment, which Limbo does not open.",
                  "Run the sender under Limbo, or without expandable_segments:True; or let it call "
                  "torch.cuda.memory._set_allocator_settings(\"expandable_segments:False\") before "
                  "it makes what it sends.");
    }
    if (bytes[1] != kStockHandleKind) {
      throw_bad_handle("A stock memory handle has the unknown kind " +
                       std::to_string(static_cast<unsigned char>(bytes[1])) + ".");
    }
    bytes.remove_prefix(kHeaderBytes);
    if (bytes.size() != kRuntimeHandleBytes) {
      throw_bad_handle("A stock memory handle carries " + std::to_string(bytes.size()) +
                       " bytes, not 64.");
    }
  }
  MemoryHandle handle;
  handle.kind = HandleKind::kRuntimeIpc;
  std::memcpy(handle.bytes.data(), bytes.data(), kRuntimeHandleBytes);
  return handle;
}

std::shared_ptr<void> StockMappings::open(Device& device, std::string_view handle_bytes,
                                          int device_index) {
  const MemoryHandle handle = parse_stock_handle(handle_bytes);
  const Key key{
      std::string(reinterpret_cast<const char*>(handle.bytes.data()), handle.bytes.size()),
      device_index};
  // Made first: once a mapping is counted nothing can fail any more. It gives up nothing until then.
  const auto user = std::make_shared<User>(*this, device, key);
  {
    const std::lock_guard lock(mutex_);
    const auto found = mappings_.find(key);
    if (found != mappings_.end()) {
      ++found->second.users;
      user->base = found->second.base;
      return {user, user->base};
    }
  }
  void* const base = device.open_memory(device_index, handle);
  try {
    const std::lock_guard lock(mutex_);
    Mapping& mapping = mappings_[key];
    mapping.base = base;
    ++mapping.driver_opens;
    ++mapping.users;
  } catch (...) {
    close(device, device_index, base);
    throw;
  }
  user->base = base;
  return {user, base};
}

StockMappings::User::~User() {
  if (base != nullptr) mappings.drop_user(key, device);
}

void StockMappings::drop_user(const Key& key, Device& device) noexcept {
  if (in_forked_child()) return;
  Mapping over;
  {
    const std::lock_guard lock(mutex_);
    const auto found = mappings_.find(key);
    if (found == mappings_.end() || --found->second.users != 0) return;
    over = found->second;
    mappings_.erase(found);
  }
  for (; over.driver_opens != 0; --over.driver_opens) close(device, key.second, over.base);
}

void StockMappings::close(Device& device, int device_index, void* base) noexcept {
  try {
    device.close_memory(device_index, base);
  } catch (...) {
    // Nobody is told: a storage is being destroyed, or fails for another reason. The mapping stays.
    std::fprintf(stderr, "limbo: closing memory of another process failed: %s\n",
                 current_exception_report().text.c_str());
  }
}

std::size_t StockMappings::size() {
  const std::lock_guard lock(mutex_);
  return mappings_.size();
}

}  // namespace limbo
