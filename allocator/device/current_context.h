// What the driver says of the calling thread.
#pragma once

namespace limbo {

// The number of the GPU whose context is current in the calling thread, from the driver (10 to 20
// ns); -1 where none is current, or there is no driver. Makes nothing.
[[nodiscard]] int current_context_device() noexcept;

}  // namespace limbo
