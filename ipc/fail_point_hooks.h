// For tests within one process: something that happens when a fail point is passed, in the passing
// thread, so that a race needs no second thread and no luck.
#pragma once

#include <functional>
#include <string_view>

namespace limbo {

// `act` runs once: at the next passing of the point, whatever else is set there. It may pass fail
// points itself, and it may set another hook. An empty function takes the hook back, as
// set_fail_points does with all of them. Throws kBadArgument when there is no such point. Not for
// use while another thread passes the point.
void at_fail_point(std::string_view name, std::function<void()> act);

}  // namespace limbo
