// What this process publishes: which blocks stand behind which names.
//
// A published block is pinned, so that its memory is not another block's when somebody acquires it:
// freed before it is unpublished it stays in limbo, and acquiring it is "gone". Each acquire is a
// send of its own, promised to the one process that asked.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "allocator/allocator.h"
#include "ipc/names.h"
#include "ipc/sharing.h"

namespace limbo {

class Publications {
 public:
  // Sends a block: SharingService::share.
  using Share = std::function<Bytes(const void* data, std::size_t size_bytes,
                                    const ShareOptions& options, ByteSpan extra)>;

  Publications(Allocator& allocator, const Incarnation& own, Share share);
  ~Publications();
  Publications(const Publications&) = delete;
  Publications& operator=(const Publications&) = delete;

  // Errors: kBadArgument (the name; size 0 or past the block's end; extra too long; consumers other
  // than 1), kNotLendable, kNameTaken, kBusy, kNoChannel. After an error nothing is published.
  void publish(const std::string& name, const void* data, std::size_t size_bytes,
               const ShareOptions& options, ByteSpan extra);
  // False: this process publishes no such name. Errors: kBadArgument; kBusy and kNoChannel, after
  // which it is published still.
  bool unpublish(const std::string& name);
  // A message of it. Errors: kNoSuchName, kGone, and those of a send.
  [[nodiscard]] Bytes acquire(const std::string& name);
  // In order.
  [[nodiscard]] std::vector<std::string> list();

  // The process ends: removes the names.
  void end() noexcept;

 private:
  struct Entry {
    Block* block = nullptr;  // pinned once for this entry
    const void* data = nullptr;
    std::size_t size_bytes = 0;
    ShareOptions options;
    Bytes extra;
  };
  using Entries = std::map<std::string, Entry>;

  [[nodiscard]] OwnNames& names();
  void drop(const std::string& name);

  Allocator& allocator_;
  const Incarnation own_;
  const Share share_;

  std::mutex changing_;  // publish and unpublish, one after the other; they wait for files
  std::mutex mutex_;     // guards what follows; nothing is called under it but pin_again
  Entries entries_;
  std::unique_ptr<RuntimeDirectory> directory_;  // made at the first publish, with names_
  std::unique_ptr<OwnNames> names_;
};

}  // namespace limbo
