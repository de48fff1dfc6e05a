//! A piece of another machine's memory: `hello NODE`.

use farmem::Memory;

fn main() {
    let node = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7411".to_owned());
    if let Err(e) = hello(&node) {
        eprintln!("hello: {e}");
        std::process::exit(1);
    }
}

fn hello(node: &str) -> farmem::Result<()> {
    let memory = Memory::connect(node)?;
    let piece = memory.alloc(4096)?;
    memory.write(piece, b"hello")?;

    let mut bytes = [0; 5];
    memory.read(piece, &mut bytes)?;
    println!("{} from {node}", String::from_utf8_lossy(&bytes));
    memory.free(piece)
}
