#include "tests/bench/report.h"

#include <cstdio>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "hooks/json.h"
#include "tests/support/text_table.h"

namespace limbo::bench {
namespace {

std::string us(double ns) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f", ns / 1'000);
  return text;
}

std::string us(std::int64_t ns) {
  return us(static_cast<double>(ns));
}

double per_operation(const Measurement& result, std::int64_t ns) {
  return static_cast<double>(ns) / static_cast<double>(result.operations_with_calls);
}

// "share-known: stream_id 1 x 0.31, write_words 1 x 1.20; together 1.51 us"
std::string calls_of(const Measurement& result) {
  std::ostringstream line;
  std::int64_t together = 0;
  for (std::size_t index = 0; index < kCalls; ++index) {
    const CallTime& call = result.calls[index];
    if (call.count == 0) continue;
    char times[64];
    std::snprintf(times, sizeof(times), "%.3g x %s",
                  per_operation(result, static_cast<std::int64_t>(call.count)),
                  us(static_cast<double>(call.ns) / static_cast<double>(call.count)).c_str());
    line << name_of(static_cast<Call>(index)) << ' ' << times << ", ";
    together += call.ns;
  }
  const double theirs = per_operation(result, together);
  line << "together " << us(theirs) << ", of a median of "
       << us(result.samples.summary().median_ns);
  return line.str();
}

void write_calls(JsonWriter& json, const Measurement& result) {
  json.key("device_calls");
  json.begin_array();
  for (std::size_t index = 0; index < kCalls; ++index) {
    const CallTime& call = result.calls[index];
    if (call.count == 0) continue;
    json.begin_object();
    json.field("call", name_of(static_cast<Call>(index)));
    json.field("count", call.count);
    json.field("ns", call.ns);
    json.end_object();
  }
  json.end_array();
}

}  // namespace

std::string text_of(const Machine& machine) {
  std::ostringstream text;
  text << "GPU: " << machine.gpu;
  if (!machine.driver.empty()) text << " (the driver offers CUDA " << machine.driver << ")";
  text << ". CPU: " << machine.cpu << ", " << machine.cores << " cores; Linux " << machine.kernel
       << ". Compiler: " << machine.build << ".\n";
  return text.str();
}

std::string text_of(const Measurements& results) {
  testing::TextTable table({"name", ">median us", ">p99", ">longest", ">budget", "met", "what"});
  std::string below;
  for (const Measurement& result : results) {
    const Summary summary = result.samples.summary();
    const std::string met = !result.invalid.empty() ? "?" : result.met() ? "yes" : "NO";
    table.add_row({result.name, us(summary.median_ns), us(summary.p99_ns), us(summary.longest_ns),
                   result.budget_ns ? us(*result.budget_ns) : "", result.budget_ns ? met : "",
                   result.what + " (" + std::to_string(summary.count) + ")"});
    if (!result.invalid.empty())
      below += "  " + result.name + ": NOT VALID, " + result.invalid + "\n";
  }
  std::string calls;
  for (const Measurement& result : results) {
    if (result.operations_with_calls > 0)
      calls += "  " + result.name + ": " + calls_of(result) + "\n";
  }
  std::string text = table.text("  ");
  if (!below.empty()) text += "\n" + below;
  if (!calls.empty()) {
    text += "\n  Device calls of one operation, how many and us each (with the clock's cost):\n" +
            calls;
  }
  return text;
}

std::string json_of(const Machine& machine, const Measurements& results) {
  JsonWriter json;
  json.begin_object();
  json.key("machine");
  json.begin_object();
  json.field("gpu", machine.gpu);
  json.field("driver", machine.driver);
  json.field("cpu", machine.cpu);
  json.field("cores", machine.cores);
  json.field("kernel", machine.kernel);
  json.field("build", machine.build);
  json.end_object();
  json.key("results");
  json.begin_array();
  for (const Measurement& result : results) {
    const Summary summary = result.samples.summary();
    json.begin_object();
    json.field("name", result.name);
    json.field("what", result.what);
    json.field("count", summary.count);
    json.field("median_ns", summary.median_ns);
    json.field("p99_ns", summary.p99_ns);
    json.field("longest_ns", summary.longest_ns);
    if (result.budget_ns) {
      json.field("budget_ns", *result.budget_ns);
      json.field("met", result.met());
    }
    json.field("invalid", result.invalid);
    if (result.operations_with_calls > 0) {
      json.field("operations_with_calls", result.operations_with_calls);
      write_calls(json, result);
    }
    json.end_object();
  }
  json.end_array();
  json.end_object();
  return json.text();
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << "\n";
  if (!file.flush()) throw std::runtime_error(path + " cannot be written");
}

}  // namespace limbo::bench
