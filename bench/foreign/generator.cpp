// A load generator on Qpid Proton C++, so that brokers are measured by a client that knows none of them.
//
//   generator send    URL ADDRESS --count N --size BYTES [--connections C] [--window W] [--sessions S] [--ids 1]
//                     [--labels L] [--unforced 1]
//   generator receive URL ADDRESS --count N              [--connections C] [--window W] [--sessions S]
//   generator latency URL ADDRESS --rate PER_SECOND --seconds S --size BYTES
//   generator accept  URL ADDRESS --count N
//   generator keep-sending   URL ADDRESS --from MS --until MS --size BYTES [--connections C] [--window W] [--keys K]
//                     [--passing 1]
//   generator keep-receiving URL ADDRESS --from MS --until MS [--connections C] [--window W]
//
// With --sessions messages go to S sessions in turn, and are received on S links, each of which holds one of them; the
// line "ready" says that all are held. With --ids every message has an id of its own, of 32 characters; with --labels
// they have L labels in turn; with --unforced they are not durable, so that an express entity may keep them in memory.
// `accept` takes the next session, one message of it, completes that, ends the link, and so
// on; its latencies are those of the attach.
//
// The two that keep doing so begin at once and count what is between two times, ms since 1970. They outlive the loss of
// a broker: connections that break are left, links that are ended are made again, what was refused is sent again. With
// --keys messages have K partition keys in turn. Their silences are the longest times in which nothing was accepted (or
// came), for each key, or else for each connection that was there until the end. With --passing every second connection
// receives, and no more is sent than W messages for each connection that have not come yet.
//
// URL is host:port. User and password come from PARTIBUS_BENCH_USER and PARTIBUS_BENCH_PASSWORD, so that no process
// list shows them. Messages are durable; every one is sent unsettled and counted when the broker has accepted it, or
// accepted by us as it arrives. The result is one line of JSON on standard output; times are seconds since 1970.
// Exit code 1 with one line on standard error when the broker refuses something.

#include <proton/annotation_key.hpp>
#include <proton/connection.hpp>
#include <proton/connection_options.hpp>
#include <proton/container.hpp>
#include <proton/delivery.hpp>
#include <proton/duration.hpp>
#include <proton/error_condition.hpp>
#include <proton/message.hpp>
#include <proton/message_id.hpp>
#include <proton/messaging_handler.hpp>
#include <proton/receiver.hpp>
#include <proton/receiver_options.hpp>
#include <proton/sender.hpp>
#include <proton/sender_options.hpp>
#include <proton/source.hpp>
#include <proton/source_options.hpp>
#include <proton/tracker.hpp>
#include <proton/transport.hpp>
#include <proton/work_queue.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iomanip>
#include <iostream>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

double now_s() {
    using namespace std::chrono;
    return duration<double>(system_clock::now().time_since_epoch()).count();
}

std::int64_t now_ns() {
    using namespace std::chrono;
    return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

struct Options {
    std::string mode, url, address;
    std::int64_t count = 10000, size = 1024, connections = 1, window = 1000, rate = 1000, seconds = 5;
    std::int64_t sessions = 0, ids = 0, labels = 0, keys = 0, passing = 0, unforced = 0, from_ms = 0, until_ms = 0;
};

proton::message make_message(std::int64_t size, bool forced = true) {
    proton::message message(proton::binary(std::string(static_cast<std::size_t>(size), 'x')));
    message.durable(forced);
    return message;
}

std::string session_name(std::int64_t number) { return "session-" + std::to_string(number); }

// The options of a receiver that asks for a session: a name, or null for the next one.
proton::receiver_options of_session(const proton::value& wanted) {
    proton::source::filter_map filters;
    filters.put("com.microsoft:session-filter", wanted);
    return proton::receiver_options().credit_window(0).source(proton::source_options().filters(filters));
}

// What all modes share: connections with a login, and errors that end the run.
class Generator : public proton::messaging_handler {
  public:
    explicit Generator(const Options& options) : options(options) {}

    void on_container_start(proton::container& container) override {
        proton::connection_options login;
        const char* user = std::getenv("PARTIBUS_BENCH_USER");
        const char* password = std::getenv("PARTIBUS_BENCH_PASSWORD");
        if (user && password) {
            login.user(user).password(password).sasl_allow_insecure_mechs(true).sasl_allowed_mechs("PLAIN");
        } else {
            login.sasl_allowed_mechs("ANONYMOUS");
        }
        for (std::int64_t number = 0; number < options.connections; ++number) {
            connections.push_back(container.connect(options.url, login));
            opened(connections.back(), number);
        }
    }

    void on_error(const proton::error_condition& error) override { fail(error.what()); }
    void on_transport_error(proton::transport& transport) override { fail(transport.error().what()); }
    void on_connection_error(proton::connection& connection) override { fail(connection.error().what()); }
    void on_sender_error(proton::sender& sender) override { fail(sender.error().what()); }
    void on_receiver_error(proton::receiver& receiver) override { fail(receiver.error().what()); }
    // One broker answers a closing detach by one that does not close.
    void on_receiver_close(proton::receiver&) override { receiver_ended(); }
    void on_receiver_detach(proton::receiver&) override { receiver_ended(); }
    void on_tracker_reject(proton::tracker&) override { fail("the broker rejected a message"); }
    void on_tracker_release(proton::tracker&) override { fail("the broker released a message"); }

  protected:
    // Share of one connection in a count.
    std::int64_t share(std::int64_t number) const {
        return options.count / options.connections + (number < options.count % options.connections ? 1 : 0);
    }

    virtual void opened(proton::connection& connection, std::int64_t number) = 0;
    virtual void receiver_ended() {}

    void finish() {
        // Proton looks at a connection only when something happens on it, or to its work queue.
        for (auto& connection : connections)
            connection.work_queue().add([connection]() mutable { connection.close(); });
    }

    // A broker that answers the end of a link has seen every settlement on it; one that is just left may not have.
    void close_receivers() {
        for (auto& receiver : receivers)
            receiver.work_queue().add([receiver]() mutable { receiver.close(); });
    }

    void print_latencies(std::ostream& out, const std::vector<std::int64_t>& latencies_us) const {
        out << "{\"messages\": " << latencies_us.size() << ", \"first_s\": " << first_s << ", \"last_s\": " << last_s
            << ", \"latencies_us\": [";
        for (std::size_t index = 0; index < latencies_us.size(); ++index)
            out << (index ? "," : "") << latencies_us[index];
        out << "]}\n";
    }

    [[noreturn]] static void fail(const std::string& reason) { throw std::runtime_error(reason); }

    const Options options;
    std::vector<proton::connection> connections;
    std::vector<proton::receiver> receivers;
    std::int64_t closed = 0;
    double first_s = 0, last_s = 0;
};

class SendAll : public Generator {
  public:
    explicit SendAll(const Options& options) : Generator(options), message(make_message(options.size, !options.unforced)) {
        std::random_device random;
        std::ostringstream prefix;
        for (int word = 0; word < 2; ++word) prefix << std::hex << std::setw(8) << std::setfill('0') << random();
        id_prefix = prefix.str();
    }

    void opened(proton::connection& connection, std::int64_t number) override {
        senders.push_back({connection.open_sender(options.address), share(number)});
    }

    void on_sendable(proton::sender& sender) override { send_more(state(sender)); }

    void on_tracker_accept(proton::tracker& tracker) override {
        State& own = state(tracker.sender());
        --own.unanswered;
        if (++accepted == options.count) {
            last_s = now_s();
            finish();
        } else {
            send_more(own);
        }
    }

    void print(std::ostream& out) const {
        out << "{\"messages\": " << accepted << ", \"first_s\": " << first_s << ", \"last_s\": " << last_s << "}\n";
    }

  private:
    struct State {
        proton::sender sender;
        std::int64_t left;
        std::int64_t unanswered = 0;
    };

    State& state(const proton::sender& sender) {
        for (auto& candidate : senders)
            if (candidate.sender == sender) return candidate;
        fail("an event for an unknown sender");
    }

    void send_more(State& own) {
        if (first_s == 0) first_s = now_s();
        while (own.left > 0 && own.unanswered < options.window && own.sender.credit() > 0) {
            if (options.sessions) message.group_id(session_name(sent % options.sessions));
            if (options.ids) message.id(id_prefix + id_suffix());
            if (options.labels) message.subject("label-" + std::to_string(sent % options.labels));
            ++sent;
            own.sender.send(message);
            --own.left;
            ++own.unanswered;
        }
    }

    // Sixteen digits, so that ids are as long as those that the service's clients make.
    std::string id_suffix() const {
        const std::string digits = std::to_string(sent);
        return std::string(16 - digits.size(), '0') + digits;
    }

    proton::message message;
    std::string id_prefix;
    std::vector<State> senders;
    std::int64_t sent = 0, accepted = 0;
};

class ReceiveAll : public Generator {
  public:
    using Generator::Generator;

    void opened(proton::connection& connection, std::int64_t) override {
        auto window = static_cast<int>(options.window);
        receivers.push_back(connection.open_receiver(
            options.address, proton::receiver_options().credit_window(window).auto_accept(true)));
    }

    void on_message(proton::delivery&, proton::message&) override {
        if (received++ == 0) first_s = now_s();
        if (received == options.count) close_receivers();
    }

    void receiver_ended() override {
        if (++closed == options.connections) {
            last_s = now_s();
            finish();
        }
    }

    void print(std::ostream& out) const {
        out << "{\"messages\": " << received << ", \"first_s\": " << first_s << ", \"last_s\": " << last_s << "}\n";
    }

  private:
    std::int64_t received = 0;
};

// One link per session. Nothing is asked for before all of them are held, so that only the transfer is measured. A link
// asks for more when half of what it asked for has come.
class ReceiveSessions : public Generator {
  public:
    using Generator::Generator;

    void opened(proton::connection& connection, std::int64_t number) override {
        for (auto session = number; session < options.sessions; session += options.connections)
            receivers.push_back(connection.open_receiver(options.address, of_session(session_name(session))));
    }

    void on_receiver_open(proton::receiver&) override {
        if (++held < options.sessions) return;
        std::cout << "ready" << std::endl;
        for (auto& receiver : receivers) receiver.work_queue().add([receiver]() mutable { receiver.add_credit(credit); });
    }

    void on_message(proton::delivery& delivery, proton::message&) override {
        if (received++ == 0) first_s = now_s();
        auto receiver = delivery.receiver();
        const auto left = static_cast<std::uint32_t>(receiver.credit());
        if (left <= credit / 2) receiver.add_credit(credit - left);
        if (received == options.count) close_receivers();
    }

    void receiver_ended() override {
        if (++closed == options.sessions) {
            last_s = now_s();
            finish();
        }
    }

    void print(std::ostream& out) const {
        out << "{\"messages\": " << received << ", \"first_s\": " << first_s << ", \"last_s\": " << last_s << "}\n";
    }

  private:
    static constexpr std::uint32_t credit = 20;
    std::int64_t held = 0, received = 0;
};

// One receiver after another: attach, receive one, complete, detach.
class AcceptNext : public Generator {
  public:
    using Generator::Generator;

    void opened(proton::connection& connection, std::int64_t) override {
        first_s = now_s();
        attach(connection);
    }

    void on_receiver_open(proton::receiver& receiver) override {
        if (receiver.source().address().empty()) return;  // Refused: the error follows.
        latencies_us.push_back((now_ns() - attached_ns) / 1000);
        receiver.add_credit(1);
    }

    void on_message(proton::delivery& delivery, proton::message&) override {
        delivery.accept();
        delivery.receiver().close();
    }

    void on_receiver_close(proton::receiver& receiver) override {
        if (static_cast<std::int64_t>(latencies_us.size()) == options.count) {
            last_s = now_s();
            finish();
            return;
        }
        auto connection = receiver.connection();
        attach(connection);
    }

    void print(std::ostream& out) const { print_latencies(out, latencies_us); }

  private:
    void attach(proton::connection& connection) {
        attached_ns = now_ns();
        connection.open_receiver(options.address, of_session(proton::null()));
    }

    std::int64_t attached_ns = 0;
    std::vector<std::int64_t> latencies_us;
};

// Sends at a fixed rate on one connection and receives on another. A message carries the time at which it was due to
// be sent by a timer that fired, so waiting for credit counts, and the timer's own lateness does not.
class Latency : public Generator {
  public:
    explicit Latency(const Options& options)
        : Generator(options), total(options.rate * options.seconds), padding(static_cast<std::size_t>(options.size), 'x') {}

    void opened(proton::connection& connection, std::int64_t number) override {
        if (number == 0) {
            receivers.push_back(
                connection.open_receiver(options.address, proton::receiver_options().credit_window(1000)));
        } else {
            sender = connection.open_sender(options.address);
        }
    }

    void on_sendable(proton::sender&) override {
        if (start_ns == 0) {
            start_ns = now_ns();
            tick();
        } else {
            send_due();
        }
    }

    void on_message(proton::delivery&, proton::message& message) override {
        const auto& body = proton::get<proton::binary>(message.body());
        std::int64_t sent_ns = 0;
        std::memcpy(&sent_ns, body.data(), sizeof sent_ns);
        latencies_us.push_back((now_ns() - sent_ns) / 1000);
        if (static_cast<std::int64_t>(latencies_us.size()) == total) {
            last_s = now_s();
            done = true;
            close_receivers();
        }
    }

    void receiver_ended() override { finish(); }

    void print(std::ostream& out) const { print_latencies(out, latencies_us); }

  private:
    void tick() {
        if (done) return;
        if (first_s == 0) first_s = now_s();
        auto due = std::min(total, 1 + (now_ns() - start_ns) * options.rate / 1000000000);
        auto now = now_ns();
        while (static_cast<std::int64_t>(due_ns.size()) < due) due_ns.push_back(now);
        send_due();
        if (sent < total) sender.work_queue().schedule(proton::duration(1), [this] { tick(); });
    }

    void send_due() {
        while (sent < static_cast<std::int64_t>(due_ns.size()) && sender.credit() > 0) {
            std::memcpy(&padding[0], &due_ns[static_cast<std::size_t>(sent)], sizeof(std::int64_t));
            proton::message message{proton::binary(padding)};
            message.durable(!options.unforced);
            sender.send(message);
            ++sent;
        }
    }

    const std::int64_t total;
    std::string padding;
    proton::sender sender;
    std::int64_t start_ns = 0, sent = 0;
    bool done = false;
    std::vector<std::int64_t> due_ns, latencies_us;
};

// What the two that keep on share: the time that counts, and connections that may break.
class Steady : public Generator {
  public:
    explicit Steady(const Options& options)
        : Generator(options), from_s(options.from_ms / 1e3), until_s(options.until_ms / 1e3) {}

    void on_container_start(proton::container& container) override {
        Generator::on_container_start(container);
        const auto left_ms = static_cast<std::int64_t>((until_s - now_s()) * 1000);
        if (left_ms < 1) fail("--until is over");
        container.schedule(proton::duration(static_cast<proton::duration::numeric_type>(left_ms)), [this] {
            over = true;
            finish();
        });
    }

    void on_transport_error(proton::transport& transport) override { left(transport.connection()); }
    void on_connection_error(proton::connection& connection) override { left(connection); }

    void print(std::ostream& out) const {
        out << "{\"messages\": " << counted << ", \"received\": " << received << ", \"seconds\": " << until_s - from_s << ", \"refused\": " << refused
            << ", \"lost_connections\": " << lost_count() << ", \"silences_ms\": [";
        const char* separator = "";
        for (std::size_t index = 0; index < groups.size(); ++index) {
            if (!options.keys && lost[index]) continue;
            const double silence_s = std::max(groups[index].longest_s, until_s - std::max(groups[index].last_s, from_s));
            out << separator << silence_s * 1e3;
            separator = ",";
        }
        out << "]}\n";
    }

  protected:
    struct Group {
        double last_s = 0, longest_s = 0;
    };

    // One message of a key, or of a connection, was accepted or came.
    void count(std::size_t group) {
        const double now = now_s();
        if (now < from_s || now >= until_s) return;
        ++counted;
        Group& own = groups[group];
        own.longest_s = std::max(own.longest_s, now - std::max(own.last_s, from_s));
        own.last_s = now;
    }

    std::size_t number_of(const proton::connection& connection) const {
        for (std::size_t index = 0; index < connections.size(); ++index)
            if (connections[index] == connection) return index;
        fail("an event for an unknown connection");
    }

    void left(const proton::connection& connection) {
        if (over) return;
        lost[number_of(connection)] = true;
        if (lost_count() == options.connections) fail("every connection broke");
    }

    std::int64_t lost_count() const { return std::count(lost.begin(), lost.end(), true); }

    const double from_s, until_s;
    std::vector<Group> groups = std::vector<Group>(static_cast<std::size_t>(options.keys ? options.keys : options.connections));
    std::vector<bool> lost = std::vector<bool>(static_cast<std::size_t>(options.connections));
    std::int64_t counted = 0, received = 0, refused = 0;
    bool over = false;
};

class KeepSending : public Steady {
  public:
    explicit KeepSending(const Options& options) : Steady(options) {
        for (std::int64_t key = 0; key < std::max<std::int64_t>(options.keys, 1); ++key) {
            messages.push_back(make_message(options.size));
            if (options.keys)
                messages.back().message_annotations().put(
                    proton::annotation_key("x-opt-partition-key"), std::string("key-" + std::to_string(key)));
        }
    }

    void opened(proton::connection& connection, std::int64_t number) override {
        if (options.passing && number % 2) {
            connection.open_receiver(
                options.address,
                proton::receiver_options().credit_window(static_cast<int>(options.window)).auto_accept(true));
        } else {
            states.push_back({connection.open_sender(options.address), {}, {}});
        }
    }

    void on_message(proton::delivery&, proton::message&) override {
        const double now = now_s();
        if (now >= from_s && now < until_s) ++received;
        if (++come % wake_messages) return;
        for (auto& own : states) {
            auto sender = own.sender;
            sender.work_queue().add([this, sender] { send_more(state(sender)); });
        }
    }

    void on_sendable(proton::sender& sender) override { send_more(state(sender)); }

    void on_tracker_accept(proton::tracker& tracker) override {
        const auto key = take(tracker);
        count(options.keys ? key : number_of(tracker.connection()));
        send_more(state(tracker.sender()));
    }

    void on_tracker_reject(proton::tracker& tracker) override { again(tracker); }
    void on_tracker_release(proton::tracker& tracker) override { again(tracker); }

    // The broker does not know what became of the messages under way: they are given up.
    void on_sender_error(proton::sender& sender) override {
        if (over) return;
        State& own = state(sender);
        refused += static_cast<std::int64_t>(own.unanswered.size());
        own.unanswered.clear();
        own.sender = sender.connection().open_sender(options.address);
    }

  private:
    struct State {
        proton::sender sender;
        std::deque<std::pair<proton::tracker, std::size_t>> unanswered;
        std::deque<std::size_t> refused;
    };

    State& state(const proton::sender& sender) {
        for (auto& candidate : states)
            if (candidate.sender == sender) return candidate;
        fail("an event for an unknown sender");
    }

    // The key of a message that was answered: mostly the oldest.
    std::size_t take(const proton::tracker& tracker) {
        auto& unanswered = state(tracker.sender()).unanswered;
        for (auto place = unanswered.begin(); place != unanswered.end(); ++place)
            if (place->first == tracker) {
                const auto key = place->second;
                unanswered.erase(place);
                return key;
            }
        fail("an answer to an unknown message");
    }

    void again(proton::tracker& tracker) {
        if (over) return;
        ++refused;
        const auto key = take(tracker);
        auto sender = tracker.sender();
        sender.work_queue().schedule(proton::duration(retry_ms), [this, sender, key] {
            for (auto& own : states)
                if (own.sender == sender) {
                    own.refused.push_back(key);
                    send_more(own);
                }
        });
    }

    void send_more(State& own) {
        if (over) return;
        while (static_cast<std::int64_t>(own.unanswered.size()) < options.window && own.sender.credit() > 0) {
            if (options.passing && sent - come >= options.connections * options.window) return;
            ++sent;
            std::size_t key;
            if (own.refused.empty()) {
                key = next_key++ % messages.size();
            } else {
                key = own.refused.front();
                own.refused.pop_front();
            }
            own.unanswered.emplace_back(own.sender.send(messages[key]), key);
        }
    }

    static constexpr int retry_ms = 50, wake_messages = 100;
    std::int64_t sent = 0, come = 0;
    std::vector<proton::message> messages;
    std::vector<State> states;
    std::size_t next_key = 0;
};

class KeepReceiving : public Steady {
  public:
    using Steady::Steady;

    void opened(proton::connection& connection, std::int64_t) override { open(connection); }

    void on_message(proton::delivery& delivery, proton::message&) override { count(number_of(delivery.connection())); }

    void on_receiver_error(proton::receiver& receiver) override {
        if (over) return;
        auto connection = receiver.connection();
        open(connection);
    }

  private:
    void open(proton::connection& connection) {
        connection.open_receiver(
            options.address,
            proton::receiver_options().credit_window(static_cast<int>(options.window)).auto_accept(true));
    }
};

Options parse(int argc, char** argv) {
    if (argc < 4) throw std::runtime_error("usage: generator send|receive|latency|accept|keep-sending|keep-receiving HOST:PORT ADDRESS [--option number]...");
    Options options;
    options.mode = argv[1];
    options.url = argv[2];
    options.address = argv[3];
    for (int index = 4; index + 1 < argc; index += 2) {
        const std::string name = argv[index];
        const std::int64_t value = std::stoll(argv[index + 1]);
        if (value < 1) throw std::runtime_error(name + " must be at least 1");
        if (name == "--count") options.count = value;
        else if (name == "--unforced") options.unforced = value;
        else if (name == "--size") options.size = value;
        else if (name == "--connections") options.connections = value;
        else if (name == "--window") options.window = value;
        else if (name == "--rate") options.rate = value;
        else if (name == "--seconds") options.seconds = value;
        else if (name == "--sessions") options.sessions = value;
        else if (name == "--ids") options.ids = value;
        else if (name == "--labels") options.labels = value;
        else if (name == "--keys") options.keys = value;
        else if (name == "--passing") options.passing = value;
        else if (name == "--from") options.from_ms = value;
        else if (name == "--until") options.until_ms = value;
        else throw std::runtime_error("unknown option " + name);
    }
    return options;
}

template <class Mode>
void run(const Options& options) {
    Mode generator(options);
    proton::container container(generator);
    container.run();
    std::cout << std::fixed << std::setprecision(6);
    generator.print(std::cout);
}

}  // namespace

int main(int argc, char** argv) {
    try {
        Options options = parse(argc, argv);
        if (options.mode == "send") {
            run<SendAll>(options);
        } else if (options.mode == "receive" && options.sessions) {
            run<ReceiveSessions>(options);
        } else if (options.mode == "receive") {
            run<ReceiveAll>(options);
        } else if (options.mode == "accept") {
            run<AcceptNext>(options);
        } else if (options.mode == "keep-sending") {
            run<KeepSending>(options);
        } else if (options.mode == "keep-receiving") {
            run<KeepReceiving>(options);
        } else if (options.mode == "latency") {
            if (options.size < 8) throw std::runtime_error("--size must hold a time of 8 bytes");
            options.connections = 2;
            run<Latency>(options);
        } else {
            throw std::runtime_error("unknown mode " + options.mode);
        }
    } catch (const std::exception& error) {
        std::cerr << "generator: " << error.what() << "\n";
        return 1;
    }
    return 0;
}
