//! The daemon: one per pipe directory, a thread per connection.

use crate::{
    limits::{Limits, MemoryLimits, parse_memory, parse_percentage},
    wire::{CLIENT, COMMAND, OK, read_line},
};
use std::{
    fs::{self, File, TryLockError},
    io::{self, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    process,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

/// Clients of one MPS server of Volta and newer.
const MAX_CLIENTS: usize = 48;
/// File that the daemon leaves in `/dev/shm`, where its clients must see it.
const SHARED_MEMORY: &str = "/dev/shm/nvidia-mps-stand-in";

#[derive(Debug, Default)]
struct State {
    defaults: Limits,
    clients: usize,
    /// The one server takes the clients of all users.
    multiuser: bool,
    /// User of the server.
    user: Option<u32>,
}

impl State {
    /// A server is of one user: with clients of its own it takes none of another.
    fn takes(&self, user: u32) -> bool {
        self.multiuser || self.clients == 0 || self.user == Some(user)
    }
}

/// The state, and who waits for a change of it.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// A daemon that is ready for connections.
#[derive(Debug)]
pub struct Daemon {
    listener: UnixListener,
    shared: Arc<Shared>,
    // The lock goes with the process.
    _lock: File,
}

impl Daemon {
    /// Takes the pipe directory over from a daemon that was killed.
    pub fn bind(pipe_directory: &Path, multiuser: bool) -> io::Result<Self> {
        let mut lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(pipe_directory.join("nvidia-cuda-mps-control.pid"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::other("An instance of this daemon is already running"));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        lock.set_len(0)?;
        write!(lock, "{}", process::id())?;
        let socket = pipe_directory.join("control");
        match fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::write(SHARED_MEMORY, process::id().to_string())?;
        let shared = Shared::default();
        lock_state(&shared.state).multiuser = multiuser;
        Ok(Self {
            listener: UnixListener::bind(socket)?,
            shared: Arc::new(shared),
            _lock: lock,
        })
    }

    /// Serves until `quit` ends the process.
    pub fn serve(self) -> io::Result<()> {
        for stream in self.listener.incoming() {
            let (stream, shared) = (stream?, self.shared.clone());
            // Who breaks a connection knows it.
            thread::spawn(move || _ = serve(stream, &shared));
        }
        Ok(())
    }
}

fn serve(mut stream: UnixStream, shared: &Shared) -> io::Result<()> {
    let state = &shared.state;
    let Some(line) = read_line(&stream)? else { return Ok(()) };
    if let Some(command) = line.strip_prefix(COMMAND) {
        if command == "quit" {
            return quit(&mut stream, state);
        }
        let answer = execute(command, &mut lock_state(state)).map_or_else(|error| error, |text| format!("{OK} {text}"));
        return writeln!(stream, "{answer}");
    }
    let Some((user, own)) = line.strip_prefix(CLIENT).and_then(client) else {
        return writeln!(stream, "cannot read the request");
    };
    let limits = {
        // As nvidia-cuda-mps-control(1) says of the real daemon: a client of another user waits, however long it takes.
        let waited = shared.changed.wait_while(lock_state(state), |state| !state.takes(user));
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.clients == MAX_CLIENTS {
            return writeln!(stream, "too many clients");
        }
        state.clients += 1;
        state.user = Some(user);
        state.defaults.smaller(&own)
    };
    let (percentage, memory) = (limits.active_thread_percentage, limits.pinned_device_memory);
    let served = writeln!(
        stream,
        "{OK} active_thread_percentage={percentage} pinned_device_mem_limit={memory}"
    )
    // A client says nothing more: this returns when it has gone.
    .and_then(|()| read_line(&stream));
    lock_state(state).clients -= 1;
    shared.changed.notify_all();
    served.map(drop)
}

/// The commands but `quit`.
fn execute(command: &str, state: &mut State) -> Result<String, String> {
    let refuse = || format!("{command:?} is not a command of this daemon");
    let words: Vec<&str> = command.split_whitespace().collect();
    match words.as_slice() {
        ["get_default_active_thread_percentage"] => Ok(format!("{:.1}", state.defaults.active_thread_percentage)),
        ["set_default_active_thread_percentage", percentage] => {
            state.defaults.active_thread_percentage = parse_percentage(percentage).ok_or_else(refuse)?;
            Ok(String::new())
        }
        ["set_default_device_pinned_mem_limit", device, limit] => {
            let device = device.parse().ok().ok_or_else(refuse)?;
            let limit = parse_memory(limit).ok_or_else(refuse)?;
            state.defaults.pinned_device_memory.0.insert(device, limit);
            Ok(String::new())
        }
        _ => Err(refuse()),
    }
}

/// The real daemon waits for its clients; who tells it to quit while there is one has made a mistake, which shows here.
fn quit(stream: &mut UnixStream, state: &Mutex<State>) -> io::Result<()> {
    let state = lock_state(state);
    if state.clients > 0 {
        return writeln!(stream, "{} clients are connected", state.clients);
    }
    // Both may be gone already with the folder; the process ends anyway.
    _ = fs::remove_file(SHARED_MEMORY);
    _ = writeln!(stream, "{OK}");
    process::exit(0);
}

/// User and limits of a client.
fn client(text: &str) -> Option<(u32, Limits)> {
    let (user, text) = text.split_once(' ')?;
    let (percentage, memory) = text.split_once(' ')?;
    let mut limits = Limits::default();
    if percentage != "-" {
        limits.active_thread_percentage = parse_percentage(percentage)?;
    }
    if memory != "-" {
        limits.pinned_device_memory = MemoryLimits::parse(memory)?;
    }
    Some((user.parse().ok()?, limits))
}

fn lock_state(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_takes_clients_of_one_user_at_a_time_or_of_all() {
        let mut state = State {
            clients: 1,
            user: Some(0),
            ..State::default()
        };
        assert!(state.takes(0) && !state.takes(1000));
        state.multiuser = true;
        assert!(state.takes(1000));
        let empty = State {
            user: Some(0),
            ..State::default()
        };
        assert!(empty.takes(1000));
    }

    #[test]
    fn a_client_of_another_user_waits_for_the_one_before_it() {
        let shared = Arc::new(Shared::default());
        let connect = |user: u32| {
            let (mut client, server) = UnixStream::pair().unwrap();
            let shared = shared.clone();
            thread::spawn(move || _ = serve(server, &shared));
            writeln!(client, "{CLIENT}{user} - -").unwrap();
            client
        };
        let first = connect(0);
        assert!(read_line(&first).unwrap().unwrap().starts_with(OK));
        let second = connect(1000);
        second
            .set_read_timeout(Some(std::time::Duration::from_millis(100)))
            .unwrap();
        assert!(read_line(&second).is_err());
        drop(first);
        second.set_read_timeout(None).unwrap();
        assert!(read_line(&second).unwrap().unwrap().starts_with(OK));
    }

    #[test]
    fn only_the_commands_that_gpunode_may_use_are_known() {
        let mut state = State::default();
        assert_eq!(
            execute("get_default_active_thread_percentage", &mut state).as_deref(),
            Ok("100.0")
        );
        execute("set_default_active_thread_percentage 25", &mut state).unwrap();
        execute("set_default_device_pinned_mem_limit 0 4G", &mut state).unwrap();
        assert_eq!(
            execute("get_default_active_thread_percentage", &mut state).as_deref(),
            Ok("25.0")
        );
        assert_eq!(state.defaults.pinned_device_memory.to_string(), "0=4096M");
        for other in [
            "",
            "get_server_list",
            "set_default_active_thread_percentage 0",
            "start_server -uid 0",
            "quit now",
        ] {
            assert!(execute(other, &mut state).is_err(), "{other:?}");
        }
    }
}
