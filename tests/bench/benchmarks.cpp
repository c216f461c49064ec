#include "tests/bench/benchmarks.h"

namespace limbo::bench {

const std::vector<Benchmark>& benchmarks() {
  static const std::vector<Benchmark> all{
      {"device", "what single device calls cost, below everything else", &measure_device_calls},
      {"share", "share of a block whose piece is lent already", &measure_share},
      {"send", "sends with 10,000 earlier ones unreleased, also behind queued work",
       &measure_send_behind_work},
      {"receive", "receive of a block whose piece is mapped, and its release", &measure_receive},
      {"link", "the same on another GPU, where there is one", &measure_receive_over_link},
      {"release", "5,000 releases on one stream behind queued work", &measure_release_behind_work},
      {"collect", "collect with 8,000 and 100,000 blocks in limbo", &measure_collect},
      {"kill", "a killed consumer's memory comes back, also under a running kernel", &measure_kill},
  };
  return all;
}

}  // namespace limbo::bench
