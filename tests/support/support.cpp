// Filled by the test harness.
namespace limbo::testing {}
