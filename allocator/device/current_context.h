// What the driver says of the calling thread.
#pragma once

namespace limbo {

// The number of the GPU whose context is current in the calling thread, from the driver (10 to 20
// ns); -1 where none is current, or there is no driver. Makes nothing.
[[nodiscard]] int current_context_device() noexcept;

// False in every thread at first. For the layer above, which makes a context current in threads that
// have none (hooks/current_stream.h): it lives here because one plain access (initial-exec) needs a
// library whose thread-local data are few, as the loader has little room for them.
extern thread_local constinit bool context_was_seen_to __attribute__((tls_model("initial-exec")));

}  // namespace limbo
