// The C++ example of hooks/README.md, as it stands there, between two processes.
#include <gtest/gtest.h>

#include <string>

#include "hooks_example.h"
#include "tests/support/child_process.h"
#include "tests/support/eventually.h"
#include "tests/unit_torch/torch_support.h"

namespace limbo::testing {
namespace {

LIMBO_CHILD_ROLE(readme_borrower) {
  const at::Tensor weights = borrow(child.receive_bytes());
  child.send(std::to_string(sim_read(weights).sum().item<float>()));
  return 0;
}

class Readme : public TorchTest {};

TEST_F(Readme, TheExampleLendsATensorAndGetsItBack) {
  begin();
  ChildProcess borrower("readme_borrower");
  borrower.send_bytes(lend(sim_arange(100)));
  borrower.expect(std::to_string(4950.0F));
  borrower.finish();
  EXPECT_TRUE(eventually([] {
    (void)process_sharing().collect();
    return process_allocator().stats(0).limbo_blocks == 0;
  }));
}

}  // namespace
}  // namespace limbo::testing
