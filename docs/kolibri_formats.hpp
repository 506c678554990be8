// sha256, JSON and safetensors, as far as a golden and a run need them. Nothing but the standard library.
// Used by `dump_run.cpp`, which says what a run holds. Little-endian machines only.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using Bytes = std::vector<uint8_t>;
using std::string;
namespace fs = std::filesystem;

[[noreturn]] void fail(const string& what) { throw std::runtime_error(what); }

// ---------------------------------------------------------------------------------------------------- sha256 (FIPS 180-4)

std::array<uint8_t, 32> sha256(const uint8_t* data, size_t size) {
    // The first 32 bits of the fractional parts of the first primes' cube and square roots.
    static const uint32_t constants[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    std::array<uint32_t, 8> h = {
        0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    Bytes message(data, data + size);
    message.push_back(0x80);
    while (message.size() % 64 != 56) message.push_back(0);
    for (int shift = 56; shift >= 0; shift -= 8) message.push_back(uint8_t(uint64_t(size) * 8 >> shift));
    auto rotate = [](uint32_t x, int n) { return x >> n | x << (32 - n); };
    for (size_t block = 0; block < message.size(); block += 64) {
        uint32_t w[64];
        for (int i = 0; i < 16; i++) {
            const uint8_t* p = &message[block + 4 * i];
            w[i] = uint32_t(p[0]) << 24 | uint32_t(p[1]) << 16 | uint32_t(p[2]) << 8 | p[3];
        }
        for (int i = 16; i < 64; i++) {
            uint32_t a = w[i - 15], b = w[i - 2];
            w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] + (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
        }
        auto v = h;
        for (int i = 0; i < 64; i++) {
            uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]), majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
            uint32_t t = v[7] + (rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25)) + choice + constants[i] + w[i];
            uint32_t u = (rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22)) + majority;
            v = {t + u, v[0], v[1], v[2], v[3] + t, v[4], v[5], v[6]};
        }
        for (int i = 0; i < 8; i++) h[i] += v[i];
    }
    std::array<uint8_t, 32> out;
    for (int i = 0; i < 32; i++) out[i] = uint8_t(h[i / 4] >> (24 - 8 * (i % 4)));
    return out;
}

string digest(const Bytes& data) {
    string out = "sha256:";
    char hex[3];
    for (uint8_t byte : sha256(data.data(), data.size())) std::snprintf(hex, sizeof hex, "%02x", byte), out += hex;
    return out;
}

// ------------------------------------------------------------------------------------------------------------------ JSON

// A JSON value. Numbers keep their text, so nothing is lost; a map is sorted by key, which canonical JSON asks for.
struct Json {
    enum Kind { Literal, String, List, Object } kind = Literal;  // Literal: a number, true, false or null
    string text = "null";
    std::vector<Json> items;
    std::map<string, Json> fields;

    Json() = default;
    Json(const char* value) : kind(String), text(value) {}
    Json(const string& value) : kind(String), text(value) {}
    Json(bool value) : text(value ? "true" : "false") {}
    Json(int64_t value) : text(std::to_string(value)) {}
    Json(std::vector<Json> value) : kind(List), items(std::move(value)) {}
    Json(std::map<string, Json> value) : kind(Object), fields(std::move(value)) {}

    const Json& operator[](const string& key) const {
        auto found = fields.find(key);
        return found != fields.end() ? found->second : (fail("JSON without \"" + key + "\""), *this);
    }
    int64_t integer() const { return std::stoll(text); }

    // Canonical: sorted keys, no spaces, UTF-8 as it is. Only `"`, `\` and control characters are escaped.
    string write() const {
        if (kind == Literal) return text;
        string out;
        if (kind == String) {
            for (char c : text) {
                static const string special = "\"\\\b\f\n\r\t", letters = "\"\\bfnrt";
                char unicode[8];
                if (auto at = special.find(c); at != string::npos) out += string("\\") + letters[at];
                else if (uint8_t(c) < 0x20) std::snprintf(unicode, sizeof unicode, "\\u%04x", c), out += unicode;
                else out += c;
            }
            return '"' + out + '"';
        }
        for (auto& item : items) out += (out.empty() ? "" : ",") + item.write();
        for (auto& [key, value] : fields) out += (out.empty() ? "" : ",") + Json(key).write() + ":" + value.write();
        return kind == List ? "[" + out + "]" : "{" + out + "}";
    }
};

class JsonReader {
public:
    explicit JsonReader(const string& text) : text_(text) {}
    Json document() {
        Json value = read();
        return peek() == 0 ? value : (fail("JSON goes on after its end"), value);
    }

private:
    char peek() {  // the next character that is no space, or 0
        at_ = text_.find_first_not_of(" \t\r\n", at_);
        return at_ == string::npos ? 0 : text_[at_];
    }
    void expect(char c) { peek() == c ? void(at_++) : fail(string("JSON is damaged: no '") + c + "' where one must be"); }
    Json read() {
        char first = peek();
        if (first == '"') return Json(quoted());
        if (first == '[' || first == '{') {
            Json out;
            out.kind = first == '[' ? Json::List : Json::Object;
            char last = first == '[' ? ']' : '}';
            for (at_++; peek() != last;) {
                if (!out.items.empty() || !out.fields.empty()) expect(',');
                if (first == '[') { out.items.push_back(read()); continue; }
                peek();
                string key = quoted();
                expect(':');
                out.fields[key] = read();
            }
            at_++;
            return out;
        }
        Json out;
        size_t end = text_.find_first_of(",]} \t\r\n", at_);
        if (first == 0 || end == string::npos) fail("JSON is damaged: it ends too early");
        out.text = text_.substr(at_, end - at_);
        at_ = end;
        return out;
    }
    string quoted() {
        expect('"');
        string out;
        while (at_ < text_.size() && text_[at_] != '"') {
            char c = text_[at_++];
            if (c != '\\') { out += c; continue; }
            static const string letters = "\"\\/bfnrt", special = "\"\\/\b\f\n\r\t";
            if (auto at = letters.find(text_.at(at_++)); at != string::npos) { out += special[at]; continue; }
            unsigned code = std::stoul(text_.substr(at_, 4), nullptr, 16);  // a golden escapes control characters only
            if (code >= 0x80) fail("JSON escapes a character that it could hold as it is");
            out += char(code);
            at_ += 4;
        }
        expect('"');
        return out;
    }
    string text_;
    size_t at_ = 0;
};

string read_file(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) fail(path.string() + " cannot be read");
    return string(std::istreambuf_iterator<char>(file), {});
}

void write_file(const fs::path& path, const Bytes& data) {
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(data.data()), int64_t(data.size()));
    if (!file.flush()) fail(path.string() + " cannot be written");
}

// ----------------------------------------------------------------------------------------------------------- safetensors

struct Array {
    string dtype;  // "I32", "F32", "F64", "U8", "BF16"
    std::vector<int64_t> shape;
    Bytes data;
    template <class T> const T* as() const { return reinterpret_cast<const T*>(data.data()); }
    size_t row_bytes() const { return data.size() / shape.at(0); }
};

template <class T> Array array_of(const char* dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
    auto start = reinterpret_cast<const uint8_t*>(values.data());
    return {dtype, std::move(shape), Bytes(start, start + values.size() * sizeof(T))};
}

// One array of a safetensors file; the others are not read.
Array read_array(const fs::path& path, const string& name) {
    std::ifstream file(path, std::ios::binary);
    uint64_t length = 0;
    file.read(reinterpret_cast<char*>(&length), 8);
    if (!file || length > 100'000'000) fail(path.string() + " is no safetensors file");
    string header(length, ' ');
    file.read(header.data(), int64_t(length));
    Json entry = JsonReader(header).document()[name];
    Array out{entry["dtype"].text, {}, {}};
    for (auto& size : entry["shape"].items) out.shape.push_back(size.integer());
    int64_t start = entry["data_offsets"].items.at(0).integer(), end = entry["data_offsets"].items.at(1).integer();
    out.data.resize(size_t(end - start));
    file.seekg(int64_t(8 + length) + start);
    file.read(reinterpret_cast<char*>(out.data.data()), end - start);
    if (!file) fail(path.string() + " ends before array " + name + " does");
    return out;
}

using Arrays = std::map<string, Array>;

Bytes safetensors(const Arrays& arrays) {
    std::vector<string> order;  // 8-byte numbers first, so that every array is aligned
    for (const char* dtype : {"F64", "F32", "I32", "U8"})
        for (auto& [name, array] : arrays)
            if (array.dtype == dtype) order.push_back(name);
    std::map<string, Json> header;
    int64_t offset = 0;
    for (auto& name : order) {
        auto& array = arrays.at(name);
        int64_t end = offset + int64_t(array.data.size());
        std::vector<Json> shape(array.shape.begin(), array.shape.end());
        header[name] = std::map<string, Json>{
            {"dtype", array.dtype}, {"shape", shape}, {"data_offsets", std::vector<Json>{offset, end}}};
        offset = end;
    }
    string text = Json(header).write();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    uint64_t length = text.size();
    Bytes out;
    auto append = [&out](const void* data, size_t size) {
        out.insert(out.end(), static_cast<const uint8_t*>(data), static_cast<const uint8_t*>(data) + size);
    };
    append(&length, 8);
    append(text.data(), text.size());
    for (auto& name : order) append(arrays.at(name).data.data(), arrays.at(name).data.size());
    return out;
}
