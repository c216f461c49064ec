// The program's actions: blocks, streams, pins.
#pragma once

#include "tests/fuzz/allocator_world.h"

namespace limbo::fuzz::allocator {

// ---- blocks ---------------------------------------------------------------------------------

inline void World::allocate(Input& input) {
  constexpr std::size_t kSizes[] = {1,         512,       700,       5'000,     40'000,
                                    300'000,   kMiB,      kMiB + 1,  3 * kMiB,  9 * kMiB,
                                    11 * kMiB, 25 * kMiB, 60 * kMiB, 500 * kMiB};
  Owned owned;
  owned.asked_bytes = kSizes[input.below(std::size(kSizes))];
  owned.home = model_.lines[pick_line(input)].ref;
  const auto reserved = [&] {
    return allocator_->stats(owned.home.device).reserved_bytes[kAll].current;
  };
  const std::int64_t before = reserved();
  try {
    patiently([&] {
      owned.data = static_cast<std::byte*>(allocator_->allocate(owned.asked_bytes, owned.home));
    });
  } catch (const OutOfMemory& failure) {
    require(failure.device == owned.home.device, "out of memory names its device");
    require(!routed(owned.home.device) || reserved() >= before,
            "nothing is returned while allocations go to a pool");
    return;
  } catch (const Error& failure) {
    require(faults_ && failure.code() == ErrorCode::kDeviceError,
            std::string("an allocation fails for no reason: ") + failure.what());
    return;
  }
  const std::optional<BlockView> view = allocator_->find(owned.data);
  require(view && view->data == owned.data, "what was allocated is found");
  require(view->requested_bytes == owned.asked_bytes && view->size_bytes >= owned.asked_bytes,
          "a block is as large as it was asked for");
  require(view->stream == owned.home, "a block belongs to the stream it was allocated on");
  require(Allocator::lender_note(view->block) == nullptr, "a new block has no note");
  owned.size_bytes = view->size_bytes;
  owned.pool = pool_of(owned);
  model_.begin(std::move(owned));
}

inline void World::free_own(Owned* owned) {
  if (owned == nullptr) return;
  if (owned == spare_) spare_ = nullptr;
  std::byte* const data = owned->data;
  model_.end(*owned);
  allocator_->free(data);
}

inline void World::free_wrongly(Input& input) {
  const auto refuses = [this](const void* data, ErrorCode expected, const char* rule) {
    try {
      allocator_->free(const_cast<void*>(data));
    } catch (const Error& error) {
      require(error.code() == expected, rule);
      return;
    }
    require(false, rule);
  };
  const std::size_t kind = input.below(4);
  const std::size_t nth = input.number();
  if (kind == 0) {
    int on_the_stack = 0;
    refuses(&on_the_stack, ErrorCode::kForeignFree,
            "what is not the allocator's is a foreign free");
  } else if (kind == 1) {
    allocator_->free(nullptr);
  } else if (kind == 2) {
    if (const Owned* owned = model_.pick_allocated(nth)) {
      const std::size_t offset = 1 + input.number<std::uint32_t>() % (owned->size_bytes - 1);
      refuses(owned->data + offset, ErrorCode::kInteriorFree, "inside a block is an interior free");
    }
  } else if (const Owned* owned =
                 model_.pick(nth, [](const Owned& each) { return !each.allocated; })) {
    refuses(owned->data, ErrorCode::kDoubleFree, "what was freed and waits is a double free");
  }
}

// ---- streams --------------------------------------------------------------------------------

inline void World::record(Input& input) {
  const std::size_t line = pick_line(input);
  const StreamRef stream = model_.lines[line].ref;
  const std::size_t kind = input.below(8);
  if (kind == 0) {
    int on_the_stack = 0;
    require(!allocator_->record_stream(&on_the_stack, stream), "what is foreign is not recorded");
    return;
  }
  Owned* owned =
      kind == 1 ? model_.pick(input.number(), [](const Owned& each) { return each.in_limbo(); })
                : model_.pick_allocated(input.number());
  if (owned == nullptr) return;
  const std::size_t offset = input.number<std::uint32_t>() % owned->size_bytes;
  require(allocator_->record_stream(owned->data + offset, stream),
          "a block that is allocated or in limbo is recorded");
  if (stream == owned->home) return;
  owned->users.push_back(line);
  // The stream writes late; whoever owns the memory by then must still be this one.
  if (stream.device != owned->home.device || model_.lines[line].capturing) return;
  owned->overwritten = true;
  device_.fill(stream, owned->data + Model::kFreeWordsOffset, 0xdddd'dddd, Model::kFreeWords);
}

inline void World::go_on(Line& line) {
  ++line.turn;
  device_.release_hold(*std::exchange(line.hold, std::nullopt));
}

inline void World::stand_or_go(Input& input) {
  Line& line = model_.lines[pick_line(input)];
  if (line.hold) {
    go_on(line);
  } else if (!line.capturing) {
    line.hold = device_.hold_stream(line.ref);
  }
}

inline void World::capture_or_end(Input& input) {
  Line& line = model_.lines[pick_line(input)];
  if (line.capturing) {
    line.capturing = false;
    ++line.turn;
    try {
      (void)device_.end_capture(line.ref);
    } catch (const Error& lost) {
      require(false,
              std::string("nothing that the allocator does breaks a capture: ") + lost.what());
    }
  } else if (!line.hold && line.ref.handle != nullptr) {
    constexpr SimCaptureMode kModes[] = {SimCaptureMode::kGlobal, SimCaptureMode::kThreadLocal,
                                         SimCaptureMode::kRelaxed};
    device_.begin_capture(line.ref, kModes[input.below(std::size(kModes))]);
    line.capturing = true;
  }
}

// ---- pins -----------------------------------------------------------------------------------

inline void World::pin(Input& input) {
  const std::size_t kind = input.below(4);
  const std::size_t nth = input.number();
  if (kind == 0) {  // one more, also in limbo
    Owned* owned = model_.pick(nth, [](const Owned& each) { return each.pins > 0; });
    if (owned == nullptr) return;
    allocator_->pin_again(owned->block);
    ++owned->pins;
    return;
  }
  if (kind == 1) {
    const Owned* gone = model_.pick(nth, [](const Owned& each) { return !each.allocated; });
    if (gone == nullptr) return;
    try {
      (void)allocator_->pin(gone->data);
    } catch (const Error& error) {
      require(error.code() == ErrorCode::kNotLendable, "a freed block is not lendable");
      return;
    }
    require(false, "a freed block is not lendable");
  }
  Owned* owned = model_.pick_allocated(nth);
  if (owned == nullptr) return;
  if (!owned->pool.is_default()) {
    try {
      (void)allocator_->pin(owned->data);
    } catch (const Error& error) {
      require(error.code() == ErrorCode::kNotLendable, "a private pool's memory is not lendable");
      return;
    }
    require(false, "a private pool's memory is not lendable");
  }
  const BlockView view =
      allocator_->pin(owned->data + input.number<std::uint32_t>() % owned->size_bytes);
  require(view.data == owned->data && view.size_bytes == owned->size_bytes,
          "a pin is told of the whole block");
  owned->block = view.block;
  ++owned->pins;
}

inline void World::unpin(Input& input) {
  Owned* owned = model_.pick(input.number(), [](const Owned& each) { return each.pins > 0; });
  if (owned == nullptr) return;
  Block* const block = owned->block;
  model_.drop_pin(*owned, false);
  allocator_->unpin(block);
}

inline void World::drain() {
  std::size_t listed = 0;
  for (const auto& [data, owned] : model_.blocks()) listed += owned.listed ? 1U : 0U;
  for (Block* block = allocator_->take_let_go(); block != nullptr;) {
    Block* const next = Allocator::next_let_go(block);
    model_.drop_pin(model_.of_block(block), true);
    allocator_->unpin(block);
    block = next;
    --listed;
  }
  require(listed == 0, "every block that was freed with a pin is let go of");
}

}  // namespace limbo::fuzz::allocator
