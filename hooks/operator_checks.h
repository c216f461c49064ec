// Checks in front of torch's own operators, for storages that may not grow.
//
// Stock PyTorch changes a tensor's shape before it finds that its storage cannot be resized, and
// then lets operators write past the end. aten::resize_ (and so every `out=` and resize_as_) and
// aten::set_.source_Storage_storage_offset are therefore asked first, for CUDA tensors: what does
// not fit a storage that is not resizable is refused with not_resizable, and nothing has changed.
//
// aten::record_stream is silently ignored by torch's own allocator for received memory, which would
// then be released too early: for memory of Limbo it is answered here, whoever the allocator is.
#pragma once

namespace limbo {

// Registers the three, once, without the warning that torch gives when a kernel is replaced; later
// replacements by others are warned about as before.
void register_operator_checks();

}  // namespace limbo
