// A program on limbo::core: lends a block and opens the message again.
#include <array>
#include <cstdint>
#include <cstdio>

#include "allocator/error.h"
#include "allocator/options.h"
#include "ipc/sharing.h"

int main() {
  limbo::Allocator& allocator = limbo::process_allocator();
  limbo::Device& device = limbo::process_device();
  limbo::Sharing& sharing = limbo::process_sharing();
  const limbo::StreamRef stream{0, nullptr};
  void* block = allocator.allocate(4096, stream);
  device.fill(stream, block, 42, 1024);
  const limbo::Bytes message = sharing.share(block, 4096, {.current_stream = stream}, {});
  std::array<std::uint32_t, 1024> words{};
  {
    const limbo::Received received = sharing.receive(message, {});
    device.copy_to_host(stream, words.data(), received.block->data(), sizeof(words));
  }
  allocator.free(block);
  try {
    (void)sharing.receive({}, {});
    return 1;
  } catch (const limbo::Error& error) {
    if (error.code() != limbo::ErrorCode::kBadDescriptor) return 1;
  }
  std::printf("word %u on %s\n", words.back(), device.name().data());
  return words.back() == 42 ? 0 : 1;
}
