// Dumps a run of an engine in C++ that `kolibri-oracle gate --replay RUN` judges. `docs/recorded-runs.md` explains it.
//
//     g++ -std=c++17 -O2 -o dump_run docs/dump_run.cpp
//     ./dump_run CHECKPOINT GOLDEN RUN [--plant late|argmax|nan] [--no-control]
//
// To dump your engine: write an `Engine` (reset, start, step) and construct it in `main` where `StandIn` is. Leave the
// rest as it is, and above all the control: `Perfect` goes through the same `drive` and `write_run` as your engine, so
// what this file does wrong shows there, and is not taken for your engine's fault.

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "kolibri_formats.hpp"

// ---------------------------------------------------------------------------------------------------------------- golden

// What is needed of one prompt. `first` is its first row in the golden's arrays; row `first + p` is about position p.
struct Prompt {
    string name;
    std::vector<int> prompt_ids, generated, fed;  // fed: prompt_ids, then all of generated but its last
    int64_t first;
    std::vector<std::pair<int, int64_t>> probes;  // (position, row in the probe arrays), in the golden's order
};

struct Golden {
    string digest;
    std::vector<Prompt> prompts;
    std::map<string, Array> arrays;
    int64_t vocabulary, hidden, layers, experts_per_token, stored;
    Array embedding;  // bf16 [vocabulary, hidden], from the checkpoint

    template <class T> const T* row(const string& name, int64_t index) const {
        auto& array = arrays.at(name);
        return reinterpret_cast<const T*>(array.data.data() + size_t(index) * array.row_bytes());
    }
};

Golden load_golden(const fs::path& checkpoint, const fs::path& folder) {
    Golden golden;
    Json document = JsonReader(read_file(folder / "golden.json")).document();
    golden.digest = document["digest"].text;
    for (auto name : {"top_ids", "top_logits", "logsumexp", "expert_ids", "expert_weights", "sketch", "probe_prompts",
                      "probe_positions", "probe_hidden", "probe_router_logits"})
        golden.arrays[name] = read_array(folder / "golden.safetensors", name);
    int64_t first = 0;
    for (auto& entry : document["prompts"].items) {
        Prompt prompt{entry["name"].text, {}, {}, {}, first, {}};
        for (auto& id : entry["prompt_ids"].items) prompt.prompt_ids.push_back(int(id.integer()));
        for (auto& id : entry["generated"].items) prompt.generated.push_back(int(id.integer()));
        prompt.fed = prompt.prompt_ids;
        prompt.fed.insert(prompt.fed.end(), prompt.generated.begin(), prompt.generated.end() - 1);
        first += int64_t(prompt.fed.size());
        golden.prompts.push_back(prompt);
    }
    for (int64_t probe = 0; probe < golden.arrays["probe_prompts"].shape[0]; probe++)
        golden.prompts.at(*golden.row<int32_t>("probe_prompts", probe))
            .probes.emplace_back(*golden.row<int32_t>("probe_positions", probe), probe);
    golden.stored = golden.arrays["top_ids"].shape[1];
    golden.layers = golden.arrays["expert_ids"].shape[1];
    golden.experts_per_token = golden.arrays["expert_ids"].shape[2];
    const string embedding = "model.embed_tokens.weight";
    Json index = JsonReader(read_file(checkpoint / "model.safetensors.index.json")).document();
    golden.embedding = read_array(checkpoint / index["weight_map"][embedding].text, embedding);
    golden.vocabulary = golden.embedding.shape[0], golden.hidden = golden.embedding.shape[1];
    return golden;
}

// --------------------------------------------------------------------------------------------------------------- engines

// What a step shows. L layers, k experts a token, E experts, H hidden size, V vocabulary. What an engine cannot show stays
// empty, at every step: its gate is then not applicable, or incomplete if the run declares it as required.
struct Step {
    int token, position;               // as the engine itself read and counted them
    std::vector<float> logits;         // [V], for the id at position + 1
    Bytes embedding;                   // the row it consumed, as its 2 * H raw bytes
    std::vector<int32_t> expert_ids;   // [L, k], by falling selection score
    std::vector<float> expert_weights; // [L, k], sigmoid weights in that order
    std::vector<float> residual;       // [L, H], the residual stream after each layer's second addition
    std::vector<float> sketch;         // [L, 32], in place of `residual`, where only that is at hand
    std::vector<float> router_logits;  // [L, E], without the bias; needed at the golden's probe positions only
};

struct Engine {
    virtual ~Engine() = default;
    virtual void reset() = 0;            // as just opened: nothing cached
    virtual void start() = 0;            // a new sequence at position 0, its KV cache empty
    virtual Step step(int token) = 0;    // consume one id; throw what you like at a device fault
};

// Answers from the golden, by the ids it was fed and never by an index: if the wrong ids are fed, it fails.
class Perfect : public Engine {
public:
    explicit Perfect(const Golden& golden) : golden_(golden) {}
    void reset() override { start(); }
    void start() override {
        position_ = 0;
        candidates_.clear();
        for (auto& prompt : golden_.prompts) candidates_.push_back(&prompt);
    }
    Step step(int token) override {
        std::vector<const Prompt*> left;
        for (auto prompt : candidates_)
            if (position_ < prompt->fed.size() && prompt->fed[position_] == token) left.push_back(prompt);
        if (left.empty()) left = unknown();
        candidates_ = left;
        return answer(token, int(position_++));
    }

protected:
    // What to go on with where no prompt begins with the ids fed. The control has no answer then.
    virtual std::vector<const Prompt*> unknown() { fail("unknown-prefix: no prompt begins with the ids fed"); }

    Step answer(int token, int position) const {
        int64_t row = candidates_[0]->first + std::min(position, int(candidates_[0]->fed.size()) - 1);
        int64_t count = golden_.layers * golden_.experts_per_token;
        auto ids = golden_.row<int32_t>("expert_ids", row);
        auto weights = golden_.row<float>("expert_weights", row);
        const uint8_t* embedded = golden_.embedding.data.data() + size_t(token) * golden_.embedding.row_bytes();
        Step out{token, position, logits(row), Bytes(embedded, embedded + golden_.embedding.row_bytes()),
                 {ids, ids + count}, {weights, weights + count}, {}, {}, {}};
        auto sketch = golden_.row<float>("sketch", row);
        out.sketch.assign(sketch, sketch + golden_.layers * 32);
        for (auto prompt : candidates_)
            for (auto [probed, probe] : prompt->probes) {
                if (probed != position) continue;
                // Here the golden holds the residual stream itself: the control shows that this file's sketches are right.
                auto hidden = golden_.row<float>("probe_hidden", probe);
                auto router = golden_.row<float>("probe_router_logits", probe);
                out.residual.assign(hidden, hidden + golden_.layers * golden_.hidden);
                out.router_logits.assign(router, router + golden_.arrays.at("probe_router_logits").row_bytes() / 4);
                out.sketch.clear();
                return out;
            }
        return out;
    }

    // The stored logits at their ids; the rest of the mass spread evenly over all others, below the stored ones.
    std::vector<float> logits(int64_t row) const {
        auto ids = golden_.row<int32_t>("top_ids", row);
        auto values = golden_.row<float>("top_logits", row);
        double lse = *golden_.row<double>("logsumexp", row), rest = 1.0, lowest = values[golden_.stored - 1];
        for (int64_t i = 0; i < golden_.stored; i++) rest -= std::exp(values[i] - lse);
        int64_t others = golden_.vocabulary - golden_.stored;
        double level = others > 0 && rest > 0 ? lse + std::log(rest / double(others)) : lowest - 100.0;
        std::vector<float> out(size_t(golden_.vocabulary), float(std::min(level, lowest)));
        for (int64_t i = 0; i < golden_.stored; i++) out[ids[i]] = values[i];
        return out;
    }

    const Golden& golden_;
    std::vector<const Prompt*> candidates_;
    size_t position_ = 0;
};

// In the place of your engine: answers like `Perfect`, with a fault on request. Like an engine it never runs out of answers.
class StandIn : public Perfect {
public:
    StandIn(const Golden& golden, string plant) : Perfect(golden), plant_(std::move(plant)) {}
    Step step(int token) override {
        Step out = Perfect::step(token);
        if (plant_ == "late") {  // logits of the position before
            std::swap(out.logits, last_);
            if (out.position == 0) out.logits = last_;
        }
        if (plant_ == "argmax" && out.position == 5) {  // the best and the second change places
            auto best = std::max_element(out.logits.begin(), out.logits.end());
            float largest = std::exchange(*best, -1e30f);
            auto second = std::max_element(out.logits.begin(), out.logits.end());
            *best = std::exchange(*second, largest);
        }
        if (plant_ == "nan" && out.position == 5) out.logits[7] = std::nanf("");
        return out;
    }

private:
    std::vector<const Prompt*> unknown() override { return {candidates_[0]}; }
    string plant_;
    std::vector<float> last_;
};

// ------------------------------------------------------------------------------------------------------- what a run holds

// The 32-number sketch of each layer: projections on rows of +1 and -1, from bit 63 of splitmix64 (Steele, Lea and Flood 2014)
// with the state 0x4B4F4C49425249 ("KOLIBRI"), row by row. Summed in double, rounded to float once.
std::vector<float> sketch_of(const std::vector<float>& residual, int64_t layers, int64_t hidden) {
    std::vector<double> sums(size_t(layers * 32));
    uint64_t state = 0x4B4F4C49425249;
    for (int64_t row = 0; row < 32; row++)
        for (int64_t column = 0; column < hidden; column++) {
            uint64_t z = state += 0x9E3779B97F4A7C15;
            z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
            z = (z ^ z >> 27) * 0x94D049BB133111EB;
            double sign = (z ^ z >> 31) >> 63 ? -1.0 : 1.0;
            for (int64_t layer = 0; layer < layers; layer++)
                sums[size_t(layer * 32 + row)] += sign * double(residual[size_t(layer * hidden + column)]);
        }
    return {sums.begin(), sums.end()};
}

// The ids of the largest `count` logits: by falling logit, the lowest id first among equals.
std::vector<int32_t> largest(const std::vector<float>& logits, int64_t count) {
    std::vector<int32_t> ids(logits.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::partial_sort(ids.begin(), ids.begin() + count, ids.end(), [&](int32_t a, int32_t b) {
        return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    });
    ids.resize(size_t(count));
    return ids;
}

double log_sum_exp(const std::vector<float>& logits) {
    double top = *std::max_element(logits.begin(), logits.end());
    long double sum = 0;  // so that 128,000 additions round away nothing that a double would show
    for (float value : logits) sum += std::exp(double(value) - top);
    return top + std::log(double(sum));
}

// Numbers that are not finite are counted, and written as 0: neither file may hold one.
int32_t screen(std::vector<float>& values) {
    int32_t bad = 0;
    for (float& value : values)
        if (!std::isfinite(value)) value = 0, bad++;
    return bad;
}

// One prompt, teacher-forced and then free: the arrays of `PromptRun` (oracle/subjects/run.py), named `prefix` + name.
void drive(Engine& engine, const Golden& golden, const Prompt& prompt, const string& prefix, Arrays& out) {
    std::vector<int32_t> consumed, positions, argmax, top_ids, expert_ids, bad, bad_routing;
    std::vector<int32_t> free_consumed, free_generated, free_ids;
    std::vector<float> at_golden, top_logits, expert_weights, sketches, router_logits;
    std::vector<double> logsumexp;
    std::vector<uint8_t> embedding;
    auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    engine.reset();
    engine.start();
    for (size_t p = 0; p < prompt.fed.size(); p++) {
        Step step = engine.step(prompt.fed[p]);
        if (!step.residual.empty()) step.sketch = sketch_of(step.residual, golden.layers, golden.hidden);
        auto is_probe = [&](auto& probe) { return probe.first == int(p); };
        if (std::none_of(prompt.probes.begin(), prompt.probes.end(), is_probe)) step.router_logits.clear();
        bad_routing.push_back(screen(step.expert_weights) + screen(step.router_logits));
        bad.push_back(bad_routing.back() + screen(step.logits) + screen(step.sketch));
        consumed.push_back(step.token);
        positions.push_back(step.position);
        auto row_digest = sha256(step.embedding.data(), step.embedding.size());
        embedding.insert(embedding.end(), row_digest.begin(), row_digest.begin() + 16);
        auto top = largest(step.logits, golden.stored);
        argmax.push_back(top[0]);
        append(top_ids, top);
        for (int32_t id : top) top_logits.push_back(step.logits[id]);
        auto ids = golden.row<int32_t>("top_ids", prompt.first + int64_t(p));
        for (int64_t i = 0; i < golden.stored; i++) at_golden.push_back(step.logits[ids[i]]);
        logsumexp.push_back(log_sum_exp(step.logits));
        append(expert_ids, step.expert_ids);
        append(expert_weights, step.expert_weights);
        append(sketches, step.sketch);
        append(router_logits, step.router_logits);
    }
    engine.start();
    int token = prompt.fed[0];
    for (size_t p = 0; p < prompt.fed.size(); p++) {
        Step step = engine.step(token);
        free_consumed.push_back(step.token);
        append(free_ids, step.expert_ids);
        for (float& value : step.logits)
            if (std::isnan(value)) value = -INFINITY;
        token = p + 1 < prompt.prompt_ids.size() ? prompt.prompt_ids[p + 1] : largest(step.logits, 1)[0];
        if (p + 1 >= prompt.prompt_ids.size()) free_generated.push_back(token);
    }
    int64_t T = int64_t(prompt.fed.size()), n = golden.stored, L = golden.layers, k = golden.experts_per_token;
    auto put = [&](const string& name, const char* dtype, std::vector<int64_t> shape, const auto& values) {
        if (!values.empty()) out[prefix + name] = array_of(dtype, shape, values);
    };
    put("consumed", "I32", {T}, consumed);
    put("positions", "I32", {T}, positions);
    put("embedding_digest", "U8", {T, 16}, embedding);
    put("argmax", "I32", {T}, argmax);
    put("logits_at_golden", "F32", {T, n}, at_golden);
    put("top_ids", "I32", {T, n}, top_ids);
    put("top_logits", "F32", {T, n}, top_logits);
    put("logsumexp", "F64", {T}, logsumexp);
    put("non_finite", "I32", {T}, bad);
    put("free_consumed", "I32", {T}, free_consumed);
    put("free_generated", "I32", {int64_t(prompt.generated.size())}, free_generated);
    // From here on what an engine may not be able to show.
    int64_t N = int64_t(prompt.probes.size());
    put("sketch", "F32", {T, L, 32}, sketches);
    put("expert_ids", "I32", {T, L, k}, expert_ids);
    put("expert_weights", "F32", {T, L, k}, expert_weights);
    put("free_expert_ids", "I32", {T, L, k}, free_ids);
    put("router_logits", "F32", {N, L, N ? int64_t(router_logits.size()) / N / L : 0}, router_logits);
    if (!expert_weights.empty() || !router_logits.empty()) put("non_finite_routing", "I32", {T}, bad_routing);
}

// ----------------------------------------------------------------------------------------------------------------- files

// All prompts by one engine, as `run.safetensors` and `run.json` in `folder`. Every field of the document must be there.
void write_run(Engine& engine, const Golden& golden, const string& name, const fs::path& folder) {
    Arrays arrays;
    std::vector<Json> prompts;
    std::map<string, Json> faults;
    for (auto& prompt : golden.prompts) {
        char prefix[16];
        std::snprintf(prefix, sizeof prefix, "%04d/", int(prompts.size()));
        Arrays shown;
        try {
            drive(engine, golden, prompt, prefix, shown);
        } catch (const std::exception& fault) {  // a fault is a failure of that prompt, never an absence
            faults[prompt.name] = fault.what();
            continue;
        }
        arrays.merge(shown);
        prompts.push_back(prompt.name);
    }
    Bytes packed = safetensors(arrays);
    std::map<string, Json> device{{"kind", "host"}};  // say what yours ran on: card, firmware, driver
    std::vector<Json> gates{"golden", "alignment", "chain", "flips", "logits", "residual", "routing", "ledger"};
    std::map<string, Json> identity{
        {"name", name}, {"numeric_class", "bf16"}, {"arm", "default"}, {"required_gates", gates}, {"device", device},
        {"libraries", std::vector<Json>{}}};  // name yours with their build times: a stale one is red
    std::map<string, Json> document{
        {"schema", "kolibri-run/4"},
        {"identity", identity},
        {"golden_digest", golden.digest},
        {"prompts", prompts},
        {"faults", faults},
        {"slots", Json()},
        {"residents", Json()},
        {"operands", Json()},
        {"census", Json()},
        {"repeats", Json()},
        {"captures", Json()},
        {"ops", Json()},
        {"stats", std::map<string, Json>{{"steps", int64_t(golden.arrays.at("top_ids").shape[0] * 2)}}},
        {"environment", std::map<string, Json>{{"compiler", __VERSION__}}},
        {"forced", false},
        {"left_out", std::vector<Json>{}},
        {"arrays_digest", digest(packed)},
    };
    string content = Json(document).write() + "\n";
    document["digest"] = digest(Bytes(content.begin(), content.end()));  // over all other fields, as they are written
    fs::create_directories(folder);
    write_file(folder / "run.safetensors", packed);
    content = Json(document).write() + "\n";
    write_file(folder / "run.json", Bytes(content.begin(), content.end()));
}

int main(int argc, char** argv) try {
    string plant;
    bool control = true;
    for (int i = 4; i < argc; i++) {
        if (string(argv[i]) == "--no-control") control = false;
        else if (string(argv[i]) == "--plant" && i + 1 < argc) plant = argv[++i];
        else argc = 0;
    }
    if (argc < 4) fail("usage: dump_run CHECKPOINT GOLDEN RUN [--plant late|argmax|nan] [--no-control]");
    fs::path run = argv[3], partial = run.string() + ".partial";  // renamed when whole
    if (fs::exists(run) || fs::exists(partial)) fail(run.string() + " or its .partial exists already; name another folder");
    Golden golden = load_golden(argv[1], argv[2]);
    StandIn engine(golden, plant);
    write_run(engine, golden, "stand-in", partial);
    Perfect perfect(golden);
    if (control) write_run(perfect, golden, "perfect", partial / "control");
    fs::rename(partial, run);
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
}
