#include "tests/tools/killmatrix/arena.h"

#include <sys/mman.h>

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <new>
#include <stdexcept>

namespace limbo::killmatrix {

Arena& make_arena() {
  void* memory =
      ::mmap(nullptr, sizeof(Arena), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no memory for the arena");
  auto* arena = new (memory) Arena;  // lives as long as the program
  arena->start_us = now_us();
  return *arena;
}

std::string_view name_of(Harm harm) noexcept {
  switch (harm) {
    case Harm::kEarly:
      return "early";
    case Harm::kNotBack:
      return "not back";
    case Harm::kName:
      return "name";
    case Harm::kOther:
      return "other";
    case Harm::kNone:
      break;
  }
  return "any";
}

std::uint64_t now_us() noexcept {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

std::uint32_t pick_receiver(const Arena& arena, Random& random, std::uint32_t slots,
                            std::optional<std::uint32_t> except) {
  std::array<std::uint32_t, kMostSlots> open{};
  std::array<std::uint32_t, kMostSlots> any{};
  std::uint32_t opens = 0;
  std::uint32_t all = 0;
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    if (slot == except) continue;
    any[all++] = slot;
    if (arena.slots[slot].gets_mail.load(std::memory_order_relaxed)) open[opens++] = slot;
  }
  return opens != 0 ? open[random.below(opens)] : any[random.below(all)];
}

void Diary::line(const char* format, ...) noexcept {
  SlotPage& page = arena_->slots[slot_];
  LogLine& line =
      page.lines[page.next_line.fetch_add(1, std::memory_order_relaxed) % page.lines.size()];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line.text.data(), line.text.size(), format, arguments);
  va_end(arguments);
  line.when_us.store(now_us() - arena_->start_us, std::memory_order_release);
}

void Diary::found(Harm harm, const char* format, ...) noexcept {
  std::array<char, 512> text{};
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  line("FOUND: %.90s", text.data());
  arena_->harms[static_cast<std::size_t>(harm)].fetch_add(1);
  const std::uint32_t index = arena_->findings_taken.fetch_add(1);
  if (index >= arena_->findings.size()) return;
  Finding& finding = arena_->findings[index];
  finding.slot = slot_;
  finding.incarnation = incarnation_;
  finding.text = text;
  finding.harm.store(static_cast<std::uint32_t>(harm), std::memory_order_release);
}

std::uint32_t Diary::new_canary(bool by_consumer) noexcept {
  std::uint32_t canary = 0;
  while (canary == 0) canary = arena_->last_canary.fetch_add(1) + 1;
  Origin& its = origin(canary);
  its.canary.store(canary);
  its.slot.store(slot_);
  its.incarnation.store(incarnation_);
  its.writer.store(by_consumer ? 1 : 0);
  its.limited.store(0);
  return canary;
}

std::string describe_canary(const Arena& arena, std::uint32_t canary) {
  if (canary == 0) return "0, as in fresh memory";
  const Origin& origin = arena.origins[canary % arena.origins.size()];
  std::string text = "canary " + std::to_string(canary);
  if (origin.canary.load() != canary) return text + " of nobody known";
  return text + " of process " + std::to_string(origin.slot.load()) + ", incarnation " +
         std::to_string(origin.incarnation.load()) +
         (origin.writer.load() == 0 ? " (the block's owner)" : " (a consumer)");
}

std::string last_lines(const Arena& arena, std::uint32_t slot, std::size_t most) {
  const SlotPage& page = arena.slots[slot];
  const std::size_t end = page.next_line.load();
  std::size_t count = most < page.lines.size() ? most : page.lines.size();
  if (count > end) count = end;
  std::string text;
  for (std::size_t i = end - count; i < end; ++i) {
    const LogLine& line = page.lines[i % page.lines.size()];
    std::array<char, 160> row{};
    std::snprintf(row.data(), row.size(), "    %10.3f ms  %s\n",
                  static_cast<double>(line.when_us.load()) / 1000, line.text.data());
    text += row.data();
  }
  return text;
}

}  // namespace limbo::killmatrix
