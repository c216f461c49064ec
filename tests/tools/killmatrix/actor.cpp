#include "tests/tools/killmatrix/actor.h"

namespace limbo::killmatrix {

Actor::Actor(Diary& diary, Post& post, Device& device, const Plan& plan, std::uint64_t seed,
             std::uint32_t slots)
    : diary_(diary),
      random_(seed),
      work_(device),
      reader_(diary, post, work_, random_, slots, !plan.two_threads) {
  if (plan.role == Role::kProducer) {
    lender_ = std::make_unique<Lender>(diary, post, work_, random_, slots, plan);
  }
}

bool Actor::act() {
  bool acted = true;
  attempt(diary_, [&] {
    if (!lender_) {
      acted = reader_.act();
    } else if (random_.one_in(4)) {
      (void)reader_.act();
    } else {
      lender_->act();
    }
  });
  // A producer is not to send faster than its readers read.
  return lender_ ? !random_.one_in(3) : acted;
}

void Actor::give_back() {
  attempt(diary_, [&] { reader_.release_all(); });
  if (lender_) attempt(diary_, [&] { lender_->free_all(); });
}

void Actor::take_back() {
  if (lender_) attempt(diary_, [&] { lender_->withdraw_all(); });
}

}  // namespace limbo::killmatrix
