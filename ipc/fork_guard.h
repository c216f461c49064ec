// What a fork child may do: nothing in its parent's name.
//
// A page that the kernel wipes in fork children (MADV_WIPEONFORK) tells a child; a pid would not,
// it can repeat. A child forked before the first use of Limbo is a new process of its own; for one
// forked later every use is an error, and it closes its parent's listener at once, because a
// listener that lives on in a child accepts connections that nobody answers.
#pragma once

#include <atomic>

namespace limbo::fork_guard {

// Every use begins with this. Throws kForkedChild in a child that was forked after its parent's
// first use; makes a child that was forked before it a process of its own. The first use throws
// kAlreadyInUse in the second copy of the library in a process. Cheap: two loads.
void begin_use();

// Whether this is a child that was forked after its parent's first use: it must touch nothing.
[[nodiscard]] bool is_forked_child() noexcept;

// A word for the layers above, null at first and null again in every fork child, however it was
// forked: what they know of this process and want to ask in one load. The same all the process's
// life.
[[nodiscard]] std::atomic<void*>& own_word() noexcept;

// The descriptor that a fork child closes at once; -1: none.
void set_listener(int fd) noexcept;

}  // namespace limbo::fork_guard
