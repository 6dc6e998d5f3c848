// The report of a JSON file, without a run: render JSON HTML.
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "profile/report.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: render JSON HTML\n";
    return 2;
  }
  std::ifstream in(argv[1], std::ios::binary);
  const std::string json{std::istreambuf_iterator<char>(in), {}};
  std::ofstream out(argv[2], std::ios::binary);
  out << detent::profile::html_report(json);
  return in && out.flush() ? 0 : 1;
}
