//! A headless browser, driven over a pipe by its DevTools protocol.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::env::{Capability, skip};

/// Longer than any reply on a busy machine; a browser that hangs fails the test.
const REPLY_MAX: Duration = Duration::from_secs(90);

/// Redirections move the pipes to descriptors 3 and 4, where it expects commands.
const START: &str = "exec chromium --headless --no-sandbox --disable-gpu --disable-quic \
    --no-first-run --disable-background-networking --disable-component-update --disable-sync \
    --disable-dev-shm-usage --remote-debugging-pipe \"--user-data-dir=$0\" about:blank \
    3<&0 4>&1 </dev/null >/dev/null 2>&1";

/// A browser with one page.
pub struct Browser {
    child: Child,
    commands: Option<ChildStdin>,
    replies: Receiver<Value>,
    events: Vec<Value>,
    session: Option<String>,
    next: u64,
    /// Its profile, removed with it.
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Returns `None`, with a line for the summary, if there is no browser.
    pub fn start() -> Option<Browser> {
        let found = Command::new("sh").args(["-c", "command -v chromium"]).output().unwrap();
        if !found.status.success() {
            skip(Capability::Chromium, "chromium is not installed");
            return None;
        }
        let profile = tempfile::tempdir().unwrap();
        let mut child = Command::new("sh")
            .args(["-c", START])
            .arg(profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, replies) = channel();
        let commands = child.stdin.take();
        let mut pipe = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            loop {
                let mut message = Vec::new();
                // Ends when the browser ends, or when the receiver is dropped.
                if pipe.read_until(0, &mut message).is_err() || message.pop() != Some(0) {
                    return;
                }
                let Ok(message) = serde_json::from_slice(&message) else { return };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Browser {
            child,
            commands,
            replies,
            events: Vec::new(),
            session: None,
            next: 0,
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", attach);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Sends a command and waits for its reply.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.next += 1;
        let mut command = json!({ "id": self.next, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        let mut bytes = serde_json::to_vec(&command).unwrap();
        bytes.push(0);
        self.commands.as_mut().unwrap().write_all(&bytes).unwrap();
        loop {
            let message = self.replies.recv_timeout(REPLY_MAX).expect("the browser replies");
            if message["id"] == json!(self.next) {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }

    /// Opens a page in a window of a given width and waits until its charts are drawn.
    pub fn open(&mut self, page: &Path, width: u32, scheme: &str) {
        self.events.clear();
        let size = json!({ "width": width, "height": 844, "deviceScaleFactor": 1,
            "mobile": width < 500 });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
        let url = format!("file://{}", page.display());
        self.call("Page.navigate", json!({ "url": url }));
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            let event = self.replies.recv_timeout(REPLY_MAX).expect("the page loads");
            self.events.push(event);
        }
        self.settle();
    }

    /// Waits until figures have been laid out and drawn: two frames.
    pub fn settle(&mut self) {
        let frames = "new Promise((done) => requestAnimationFrame(() => \
            requestAnimationFrame(() => requestAnimationFrame(() => done(1)))))";
        assert_eq!(self.value(frames), json!(1));
    }

    /// Returns the value of an expression in the page.
    pub fn value(&mut self, expression: &str) -> Value {
        let ask = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let reply = self.call("Runtime.evaluate", ask);
        assert!(reply.get("exceptionDetails").is_none(), "{expression}: {reply}");
        reply["result"]["value"].clone()
    }

    /// Returns the number that an expression evaluates to.
    pub fn count(&mut self, expression: &str) -> usize {
        let value = self.value(expression);
        let count = value.as_u64().unwrap_or_else(|| panic!("{expression}: {value}"));
        usize::try_from(count).unwrap()
    }

    /// Returns the number of marks of a class in a figure. Auxiliary elements, such as ticks, are
    /// not counted.
    pub fn marks(&mut self, figure: &str, class: &str) -> usize {
        self.count(&format!(
            "document.querySelectorAll('#{figure} svg g.{class} > :not(defs, marker)').length"
        ))
    }

    /// Returns the faults of the open page's layout: text that is cut off, labels that overlap.
    pub fn layout_faults(&mut self) -> Vec<String> {
        serde_json::from_value(self.value(include_str!("layout.js"))).unwrap()
    }

    /// Presses and releases a key.
    pub fn press(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            let code = json!({ "type": kind, "key": key, "code": key,
                "windowsVirtualKeyCode": match key { "ArrowRight" => 39, "Enter" => 13, _ => 9 } });
            self.call("Input.dispatchKeyEvent", code);
        }
        self.settle();
    }

    /// Returns the complaints of the console and the browser since the page was opened.
    pub fn complaints(&self) -> Vec<String> {
        let bad = self.events.iter().filter(|event| match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => event["params"]["type"] != "debug",
            Some("Log.entryAdded") => true,
            _ => false,
        });
        bad.map(ToString::to_string).collect()
    }

    /// Returns the addresses that were requested since the page was opened.
    pub fn requests(&self) -> Vec<String> {
        let sent = self.events.iter();
        let sent = sent.filter(|event| event["method"] == "Network.requestWillBeSent");
        sent.map(|event| event["params"]["request"]["url"].as_str().unwrap().to_owned()).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its state does not matter: it has nothing that is worth keeping.
        self.commands = None;
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
