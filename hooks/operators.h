// The operators torch.ops.limbo.*, registered when the library is loaded
// (`torch.ops.load_library`, ctypes.CDLL or linking). `bytes` is a one-dimensional uint8 tensor on
// the CPU.
//
// In a child that was forked after its parent's first use all but is_limbo (false) and is_received fail
// with forked_child.
//
// Inside of torch.func's transforms (grad, vmap and the like) they take and give plain tensors, as outside;
// what a transform gives to its function is for the caller to refuse, also before is_limbo and
// is_received: it stands for other tensors.
//
// An error is a RuntimeError whose text begins with "limbo[<code name>]: " (error_text.h); out of
// memory is torch.OutOfMemoryError.
#pragma once

namespace limbo {

// One line per operator, as torch's schema language has it.
//
// Sharing:
//   share            A descriptor of the whole storage with the tensor's dtype, sizes, strides,
//                    offset, requires_grad and `kind` (a number of the caller's: 0 to 255) in it.
//                    `consumers`: processes that are promised the block. `ttl_s`: seconds that an
//                    unopened message stays openable, counted from the later of the send and the
//                    owner's free; None: option message_time_limit_ms. A tensor without elements in
//                    its storage needs no memory, and no Limbo.
//                    Errors: not_lendable (CPU, another allocator's memory or a private pool's,
//                    sparse, nested, quantized, a non-leaf that requires grad), bad_argument,
//                    ledger_full.
//                    Received memory is sent on: its owner is asked, and waited for, at most a
//                    second. Errors then also: no_channel, producer_exited, withdrawn, expired.
//   receive          The tensor. `device`: the index to open on; -1: the owner's GPU, by its UUID.
//                    Its storage is not resizable; two tensors of one storage share it.
//   share_storage    Like share, of the storage of `t` alone: its metadata is ignored.
//   receive_storage  A uint8 tensor over the whole storage, from a message of share or
//                    share_storage. requires_grad is false.
//   kind             The `kind` that share was given, without claiming anything; -1 for a message
//                    of share_storage.
//   withdraw         Takes a message of this process back: who has not opened it gets `withdrawn`.
//   collect          Unpins what is over. True when anything came back. Never blocks.
//   is_limbo         Whether `share` can lend this tensor: its storage lies in one block that Limbo
//                    allocated outside of private pools, or was received through it. Never throws,
//                    starts nothing.
//   is_received      Whether its storage was received through Limbo.
//   is_orphaned      Whether work on it of who lends it, or has sent it on, will not come: of any of
//                    the messages that brought its storage. Error: forked_child.
//   holders, stats   JSON, as in capi.h.
//
// Names, and other processes (sharing.h says what each waits for):
//   publish          Lets others acquire the tensor under `name`. `ttl_s`, `kind`: of each message
//                    that an acquire makes. Errors: as share, and bad_argument (the name),
//                    name_taken, busy.
//   unpublish        False: this process publishes no such name.
//   acquire          A message for this process, from whoever publishes `name`; give it to receive.
//                    Errors: no_such_name, gone, producer_exited, no_channel.
//   names            JSON: [{"name", "pid", "incarnation", "directory"}, ...], what is published.
//   processes        JSON: [{"pid", "incarnation", "directory"}, ...], who lends, this process too
//                    if it does.
//   holders_of       holders of the process with this incarnation. Errors: producer_exited.
//   reap_in          Has that process reap: [receivers done with, claims they had].
//
// On the simulated device (LIMBO_DEVICE=simulated), where torch's own CUDA kernels cannot run:
//   sim_empty        A tensor of device type cuda over the simulated GPU's memory.
//   sim_fill         Writes `value` into every element, in stream order where the element size
//                    allows it.
//   sim_read         A contiguous copy on the CPU; waits for the current stream.
//   sim_write        Copies a CPU tensor of the same sizes and dtype in; waits for the stream.
//   sim_equal        Same sizes, dtype and bits; either may be on the CPU.
//   sim_new_stream   Makes a stream; its number is its handle, and its id in torch.Stream.
//   sim_set_stream   Makes `stream` (0: the default one) the calling thread's current stream of
//                    `device`; returns the one before.
//   sim_current_stream, sim_synchronize
//   sim_record_history  As torch.cuda.memory._record_memory_history, with Python's stacks at the
//                    contexts "none", "state", "alloc" or "all"; nothing: off.
inline constexpr const char* kOperatorSchemas[] = {
    "share(Tensor t, int consumers=1, float? ttl_s=None, int kind=0) -> Tensor",
    "receive(Tensor bytes, int device=-1) -> Tensor",
    "share_storage(Tensor t, int consumers=1, float? ttl_s=None) -> Tensor",
    "receive_storage(Tensor bytes, int device=-1) -> Tensor",
    "kind(Tensor bytes) -> int",
    "withdraw(Tensor bytes) -> ()",
    "collect() -> bool",
    "is_limbo(Tensor t) -> bool",
    "is_received(Tensor t) -> bool",
    "is_orphaned(Tensor t) -> bool",
    "holders() -> str",
    "stats() -> str",
    "publish(Tensor t, str name, float? ttl_s=None, int kind=0) -> ()",
    "unpublish(str name) -> bool",
    "acquire(str name) -> Tensor",
    "names() -> str",
    "processes() -> str",
    "holders_of(str incarnation) -> str",
    "reap_in(str incarnation, bool force=False) -> int[]",
    "sim_empty(int[] sizes, *, ScalarType dtype=float, int device=0) -> Tensor",
    "sim_fill(Tensor(a!) t, Scalar value) -> ()",
    "sim_read(Tensor t) -> Tensor",
    "sim_write(Tensor(a!) t, Tensor values) -> ()",
    "sim_equal(Tensor a, Tensor b) -> bool",
    "sim_new_stream(int device=0) -> int",
    "sim_set_stream(int stream, int device=0) -> int",
    "sim_current_stream(int device=0) -> int",
    "sim_synchronize(int device=0) -> ()",
    "sim_record_history(str? contexts, int max_entries=100000) -> ()",
};

// Registers all of them, once. False when somebody else has registered the namespace "limbo":
// another copy of this library.
bool register_operators();

}  // namespace limbo
