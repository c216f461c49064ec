// What the allocator asks of whoever lends its blocks, without knowing what lending is.
//
// The allocator knows pins ("do not reuse this block when it is freed"); the lender knows why.
// Every call below is made with no allocator lock held, from any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace limbo {

class Lender {
 public:
  virtual ~Lender() = default;

  // Looks for exports that are over and unpins their blocks. Never blocks: when another thread is
  // collecting already, that thread is asked to look again, and a tracker (trace.h) that another
  // thread is in is not waited for. True when anything was unpinned here.
  virtual bool collect() = 0;

  // The last look before out-of-memory on `device`: waits, at most `at_most`, for a running collect
  // and its unpins, looks at everything whatever the dirty words say. True when anything was
  // unpinned meanwhile.
  virtual bool collect_thoroughly(int device, std::chrono::milliseconds at_most) = 0;

  // The allocator wants to return a piece to the driver: it has neither a live block nor a pin, and
  // no block of it is handed out until that is done or given up. True when nobody maps it, so that
  // it may be returned now (where the driver refuses, the allocator goes on with the piece). False:
  // the lender has flagged it, consumers will unmap it, and the allocator keeps it and asks again
  // later.
  virtual bool may_return_piece(std::uint64_t piece_id) = 0;

  // Follows a true may_return_piece when the memory has gone back to the driver.
  virtual void piece_returned(std::uint64_t piece_id) = 0;

  // Waits, at most `at_most`, until some flagged piece of `device` is no longer mapped by anybody.
  // True when there is one that the allocator has not asked for since: it may ask now.
  virtual bool wait_for_unmapped_pieces(int device, std::chrono::milliseconds at_most) = 0;

  // For the out-of-memory text: who holds what of `device`; empty when nobody does. One sentence.
  virtual std::string describe_holders(int device) = 0;
};

}  // namespace limbo
