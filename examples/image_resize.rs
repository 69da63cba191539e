//! A service that resizes images: it responds at once, and resizes in a job.
//!
//! Without arguments it starts on a free port, calls itself and checks the result. To call it:
//!
//! ```sh
//! cargo run -p dwell-examples --example image-resize -- serve sqlite://images.db
//!
//! curl -i --data-binary @photo.jpg 'http://127.0.0.1:3000/images?width=200'     # 202, Location: /v1/jobs/…
//! curl http://127.0.0.1:3000/v1/jobs/ID                                         # {"status":"Completed", …}
//! curl http://127.0.0.1:3000/v1/jobs/ID/result                                  # {"image":"/images/ID.png", …}
//! curl -o small.png http://127.0.0.1:3000/images/ID.png
//!
//! # An idempotency key makes a request repeatable: 202 once, then 200 and the same job.
//! curl -i -H 'Idempotency-Key: photo-1' --data-binary @photo.jpg 'http://127.0.0.1:3000/images?width=200'
//!
//! # Later, and cancelled.
//! curl -i --data-binary @photo.jpg 'http://127.0.0.1:3000/images?width=200&delay_seconds=3600'
//! curl -X DELETE http://127.0.0.1:3000/v1/jobs/ID                               # {"outcome":"cancelled"}
//! ```
//!
//! It listens on port 3000, or on the address in the third argument (`127.0.0.1:8080`), and stores
//! the images in the folder `images` of the working directory.
//!
//! With `sqlite://` a job survives a restart of the service.

use anyhow::{Context as _, ensure};
use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Path, Query, State as App},
    http::header,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use dwell::{
    Timestamp,
    axum::{Accepted, IdempotencyKey, JobRoutes, Problem},
    jobs::Jobs,
    prelude::*,
    settings::RetryPolicy,
};
use image::{GenericImageView as _, ImageFormat, ImageReader};
use serde_json::Value;
use std::{
    env,
    io::Cursor,
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};
use tokio::{
    fs,
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

// The job.

#[derive(Command, Serialize, Deserialize)]
#[message(name = "image.resize")]
struct Resize {
    /// File name of the upload in the folder of images.
    upload: String,
    width: u32,
}

#[derive(Serialize, Deserialize)]
struct Resized {
    image: String,
    width: u32,
    height: u32,
}

/// Folder of uploads and results.
#[derive(Clone)]
struct Folder(PathBuf);

/// A blocking handler on a dedicated thread, because resizing is computation. Its return value is
/// the result of the job.
fn resize(job: Resize, State(folder): State<Folder>, cx: Cx) -> Result<Resized, Failure> {
    let upload = ImageReader::open(folder.0.join(&job.upload))?.with_guessed_format()?;
    // A retry would read the same image.
    let image = upload.decode().map_err(|error| Failure::reject(format!("this is no image: {error}")))?;
    let small = image.thumbnail(job.width, u32::MAX);
    let name = format!("{}.png", cx.id());
    small.save_with_format(folder.0.join(&name), ImageFormat::Png)?;
    Ok(Resized { image: format!("/images/{name}"), width: small.width(), height: small.height() })
}

// The service.

#[derive(Clone)]
struct Service {
    jobs: Jobs,
    folder: Folder,
}

#[derive(Deserialize)]
struct Wish {
    width: u32,
    delay_seconds: Option<u64>,
}

/// Stores the upload, submits the job, and responds with its location.
async fn upload(
    App(service): App<Service>,
    key: IdempotencyKey,
    Query(wish): Query<Wish>,
    body: Bytes,
) -> Result<Accepted, Problem> {
    if wish.width == 0 {
        return Err(dwell::Error::new(dwell::ErrorKind::Invalid, "`width` is at least 1").into());
    }
    // The name is a hash of the content, so that an equal request is the same job. The file is
    // renamed when it is complete, because a worker may already read the same image.
    static PART: AtomicU64 = AtomicU64::new(0);
    let (folder, upload) = (&service.folder.0, format!("upload-{:016x}", fingerprint(&body)));
    let part = folder.join(format!("part-{}", PART.fetch_add(1, Ordering::Relaxed)));
    let kept = async {
        fs::write(&part, &body).await?;
        fs::rename(&part, folder.join(&upload)).await
    };
    if let Err(error) = kept.await {
        return Err(dwell::Error::new(dwell::ErrorKind::Unavailable, format!("no upload: {error}")).into());
    }
    let mut job = service.jobs.submit(Resize { upload, width: wish.width }).id_if_given(key.0).max_retries(3);
    if let Some(seconds) = wish.delay_seconds {
        job = job.after(Duration::from_secs(seconds));
    }
    Ok(job.await?.into())
}

async fn download(App(service): App<Service>, Path(name): Path<String>) -> Result<Response, Problem> {
    let no_image = || dwell::Error::new(dwell::ErrorKind::NotFound, "there is no such image");
    if !name.ends_with(".png") || name.contains(['/', '\\']) {
        return Err(no_image().into());
    }
    let image = fs::read(service.folder.0.join(name)).await.map_err(|_| no_image())?;
    Ok(([(header::CONTENT_TYPE, "image/png")], image).into_response())
}

/// FNV-1a.
fn fingerprint(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn app(jobs: Jobs, folder: Folder) -> Router {
    Router::new()
        .route("/images", post(upload).layer(DefaultBodyLimit::max(20 << 20)))
        .route("/images/{name}", get(download))
        .with_state(Service { jobs: jobs.clone(), folder })
        .merge(JobRoutes::new(jobs).without_submission().router())
}

fn wiring(folder: &Folder) -> dwell::Builder {
    let retry = RetryPolicy { max_retries: 3, base_delay: Duration::from_secs(1), ..RetryPolicy::default() };
    Bus::builder().state(folder.clone()).job_with(|queue| queue.concurrency(2).retry(retry), resize)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = env::args().skip(1);
    let serve = arguments.next().is_some_and(|argument| argument == "serve");
    let url = arguments.next().or(env::var("DWELL_EXAMPLE_URL").ok()).unwrap_or("memory://".into());
    let listen = arguments.next().unwrap_or(if serve { "127.0.0.1:3000" } else { "127.0.0.1:0" }.into());

    let folder = match serve {
        true => Folder("images".into()),
        false => {
            Folder(env::temp_dir().join(format!("dwell-images-{}", Timestamp::from(SystemTime::now()).0)))
        }
    };
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).init();
    fs::create_dir_all(&folder.0).await?;
    let bus = wiring(&folder).start(&url).await?;
    let listener = TcpListener::bind(&listen).await.with_context(|| format!("cannot listen on {listen}"))?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(axum::serve(listener, app(bus.jobs()?, folder.clone())).into_future());
    println!("listening on http://{address}");

    if serve {
        return Ok(bus.run_until(tokio::signal::ctrl_c()).await?);
    }
    let checked = check(&Client(address.to_string())).await;
    server.abort();
    bus.shutdown().await?;
    fs::remove_dir_all(&folder.0).await?;
    checked
}

// The check.

async fn check(client: &Client) -> anyhow::Result<()> {
    let mut photo = Cursor::new(vec![]);
    image::RgbImage::from_fn(640, 480, |x, y| image::Rgb([x as u8, y as u8, 128]))
        .write_to(&mut photo, ImageFormat::Jpeg)?;
    let photo = photo.into_inner();

    let request = "POST /images?width=160 HTTP/1.1\r\nIdempotency-Key: photo-1";
    let (status, location, _) = client.call(request, &photo).await?;
    ensure!((status, location.as_str()) == (202, "/v1/jobs/photo-1"), "{status} {location}");
    let job = client.wait_for(&location, "Completed").await?;
    let result: Resized = serde_json::from_slice(&client.get(&format!("{location}/result")).await?)?;
    let small = image::load_from_memory(&client.get(&result.image).await?)?;
    ensure!(small.dimensions() == (160, 120) && (result.width, result.height) == (160, 120));
    println!("640 x 480 became {} x {} by {}", result.width, result.height, job["worker"]);

    let (status, again, _) = client.call(request, &photo).await?;
    ensure!((status, &again) == (200, &location), "the same request is the same job");

    let (status, _, problem) = client.call("POST /images?width=0 HTTP/1.1", &photo).await?;
    let problem: Value = serde_json::from_slice(&problem)?;
    ensure!(status == 400 && problem["code"] == "invalid_request", "{status} {problem}");
    println!("what cannot be is refused: {}", problem["detail"]);

    let (_, location, _) = client.call("POST /images?width=160 HTTP/1.1", b"no image at all").await?;
    let failed = client.wait_for(&location, "Failed").await?;
    println!("what is no image has failed: {}", failed["error"]);

    let (_, location, _) = client.call("POST /images?width=160&delay_seconds=3600 HTTP/1.1", &photo).await?;
    let (status, _, _) = client.call(&format!("DELETE {location} HTTP/1.1"), b"").await?;
    ensure!(status == 200);
    client.wait_for(&location, "Cancelled").await?;
    println!("what was for later is cancelled");
    Ok(())
}

/// A minimal HTTP client for one address.
struct Client(String);

impl Client {
    /// Returns status, `Location` and body of the response.
    async fn call(&self, request: &str, body: &[u8]) -> anyhow::Result<(u16, String, Vec<u8>)> {
        let mut stream = TcpStream::connect(&self.0).await?;
        let head = format!(
            "{request}\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            self.0,
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body).await?;
        let mut answer = vec![];
        stream.read_to_end(&mut answer).await?;
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").context("an answer has a head")?;
        let head = std::str::from_utf8(&answer[..end])?;
        let status = head.split(' ').nth(1).context("an answer has a status")?.parse()?;
        let location =
            head.lines().find_map(|line| line.strip_prefix("location: ")).unwrap_or_default().to_owned();
        Ok((status, location, answer[end + 4..].to_vec()))
    }

    async fn get(&self, path: &str) -> anyhow::Result<Vec<u8>> {
        let (status, _, body) = self.call(&format!("GET {path} HTTP/1.1"), b"").await?;
        ensure!(status == 200, "{path}: {status} {}", String::from_utf8_lossy(&body));
        Ok(body)
    }

    /// Waits until the job at this path has ended, and returns it.
    async fn wait_for(&self, path: &str, expected: &str) -> anyhow::Result<Value> {
        loop {
            let job: Value = serde_json::from_slice(&self.get(path).await?)?;
            let status = job["status"].as_str().context("a job has a status")?.to_owned();
            if ["Completed", "Failed", "Cancelled"].contains(&status.as_str()) {
                ensure!(status == expected, "{job}");
                return Ok(job);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
