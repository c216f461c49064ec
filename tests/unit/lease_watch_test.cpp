#include "ipc/lease_watch.h"

#include <gtest/gtest.h>

#include "ipc/life_line.h"

namespace limbo {
namespace {

using Clock = DeathSigns::Clock;

TEST(DeathSigns, ALivingProcessIsNeverQuiet) {
  const Clock::time_point now = Clock::now();
  DeathSigns signs;
  EXPECT_FALSE(signs.gone());
  signs.connection_closed = true;
  EXPECT_FALSE(signs.gone());
  EXPECT_FALSE(signs.quiet_at(now));
  signs.connection_closed = false;
  signs.life_line_closed = true;  // closed by the program by mistake: it still talks to us
  EXPECT_FALSE(signs.gone());
  EXPECT_FALSE(signs.quiet_at(now));
}

TEST(DeathSigns, EndedAndLifeLineClosedIsQuietAtOnce) {
  const Clock::time_point now = Clock::now();
  DeathSigns signs;
  signs.process_ended = true;
  EXPECT_TRUE(signs.gone());
  EXPECT_FALSE(signs.quiet_at(now));
  EXPECT_NE(signs.why().find("fork child"), std::string::npos);
  signs.life_line_closed = true;
  EXPECT_EQ(signs.quiet_at(now), now);
}

TEST(DeathSigns, GraceRunsFromTheLastSignAndIsNotExtended) {
  const Clock::time_point now = Clock::now();
  for (const std::uint32_t flags : {life_line::kLate, life_line::kPerhapsMps}) {
    DeathSigns signs;
    signs.life_line_flags = flags;
    signs.life_line_closed = true;
    EXPECT_FALSE(signs.quiet_at(now));
    signs.process_ended = true;
    EXPECT_EQ(signs.quiet_at(now), now + kQuietGrace);
    EXPECT_EQ(signs.quiet_at(now + kQuietGrace), now + kQuietGrace);
  }
}

TEST(DeathSigns, ExecIsToldByLifeLineAndConnectionAndGetsGrace) {
  const Clock::time_point now = Clock::now();
  DeathSigns signs;
  signs.life_line_closed = true;
  signs.connection_closed = true;
  EXPECT_TRUE(signs.gone());
  EXPECT_EQ(signs.quiet_at(now), now + kQuietGrace);
  EXPECT_NE(signs.why().find("exec"), std::string::npos);
}

TEST(DeathSigns, ChildrenFromBeforeTheLifeLineKeepItForEver) {
  DeathSigns signs;
  signs.life_line_flags = life_line::kLate | life_line::kLateWithChildren;
  signs.process_ended = signs.life_line_closed = signs.connection_closed = true;
  EXPECT_TRUE(signs.gone());
  EXPECT_FALSE(signs.quiet_at(Clock::now()));
  EXPECT_FALSE(signs.why().empty());
}

}  // namespace
}  // namespace limbo
