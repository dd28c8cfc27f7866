// Lines or one JSON object on standard output.
#pragma once

#include <cstdint>
#include <iostream>
#include <sstream>
#include <string_view>

namespace bench {

class report {
public:
    report(std::string_view schema, bool json) : json_(json) {
        if (json_) {
            text_ << "{\"schema\":\"" << schema << '"';
        }
    }
    void add(std::string_view name, std::string_view value) { put(name, json_ ? "\"" : "", value, json_ ? "\"" : ""); }
    void add(std::string_view name, std::uint64_t value) { put(name, "", value, ""); }
    void add(std::string_view name, double value) { put(name, "", value, ""); }
    void print() { std::cout << text_.str() << (json_ ? "}\n" : "") << std::flush; }

private:
    template <class T>
    void put(std::string_view name, std::string_view before, const T& value, std::string_view after) {
        if (json_) {
            text_ << ",\"" << name << "\":" << before << value << after;
        } else {
            text_ << name << ' ' << value << '\n';
        }
    }

    bool json_;
    std::ostringstream text_;
};

}  // namespace bench
