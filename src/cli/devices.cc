#include <iostream>

#include <fmt/format.h>

#include "base/json.h"
#include "base/thread_pool.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "device/open_backend.h"

namespace quire::cli {
namespace {

struct DevicesCommand {
  bool json = false;
  double seconds = 0.3;

  void operator()() const {
    const DeviceList list = list_devices();
    const std::string usual = usual_device();
    OrderedJson rows = OrderedJson::array();
    for (const DeviceReport& device : list.devices) {
      MachineRates rates;
      if (device.refusal.empty() && seconds > 0)
        rates = open_backend({.device = device.name, .threads = usable_cpus()})
                    ->make_yardstick({.seconds = seconds})
                    ->measure();
      if (json) {
        rows.push_back({{"device", device.name},
                        {"description", device.description},
                        {"usual", device.name == usual},
                        {"refusal", device.refusal},
                        {"memory_bytes", device.memory},
                        {"free_bytes", device.free_memory},
                        {"read_gb_s", rates.read_gb_s},
                        {"bf16_gflops", rates.bf16_gflops},
                        {"int8_gops", rates.int8_gops},
                        {"f32_gflops", rates.f32_gflops}});
        continue;
      }
      fmt::print("{}{}: {}\n", device.name, device.name == usual ? " (auto)" : "", device.description);
      if (device.memory > 0)
        fmt::print("  memory {}, {} free\n", human_bytes(device.memory), human_bytes(device.free_memory));
      if (!device.refusal.empty()) fmt::print("  cannot be used: {}\n", device.refusal);
      if (rates.read_gb_s > 0) {
        fmt::print("  reads {:.0f} GB/s, multiplies {:.0f} GFLOP/s of bf16 ({}), {:.0f} of f32 ({})\n",
                   rates.read_gb_s, rates.bf16_gflops, rates.bf16_instruction, rates.f32_gflops,
                   rates.f32_instruction);
      }
    }
    if (json) {
      std::cout << OrderedJson{{"devices", rows}, {"problem", list.problem}}.dump(
                       2, ' ', false, OrderedJson::error_handler_t::replace)
                << "\n";
    } else if (!list.problem.empty()) {
      fmt::print("no GPU: {}\n", list.problem);
    }
  }
};

}  // namespace

void add_devices(CLI::App& app) {
  auto command = std::make_shared<DevicesCommand>();
  CLI::App* devices =
      app.add_subcommand("devices", "what --device can name on this machine, with measured limits");
  devices
      ->add_option("--seconds", command->seconds, "how long each limit is measured; 0: nothing is measured")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 60.0));
  devices->add_flag("--json", command->json, "print one JSON object");
  devices->callback([command] { (*command)(); });
}

}  // namespace quire::cli
